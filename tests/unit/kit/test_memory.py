"""What was freed goes back to the system, in a process of its own: such a thing holds for a whole process."""

import gc
import json
import subprocess
import sys

import pytest

from node_agent.kit.memory import nothing_to_collect

PROGRAM = """
import ctypes, json, os, sys, tempfile, threading
from node_agent.kit.memory import give_back_freed
from tests.life.told import mallinfo

if sys.argv[1] == "given back":
    give_back_freed()
all_at_work = threading.Barrier(4)

def work():
    kept = [bytes(5000) for _ in range(100)]
    all_at_work.wait(60)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(os.fsencode(file.name), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    arenas = file.read().count(b"<heap nr")

large = bytes(2 << 20)
del large
blocks = [bytes(1 << 20) for _ in range(30)]
# Small ones, more than the holes take that the imports have left.
beyond = [bytes(5000) for _ in range(4000)]
del blocks
print(json.dumps({"arenas": arenas, "kept": mallinfo()["free"]}))
"""


def outcome(how: str) -> dict[str, int]:
    if not sys.platform.startswith("linux"):
        pytest.skip("there is no glibc")
    ended = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(ended.stdout)
    return found


def test_one_arena_serves_all_threads_and_a_hole_of_large_blocks_goes_back() -> None:
    found = outcome("given back")
    assert found["arenas"] == 1
    assert found["kept"] < 4 << 20


def test_else_each_thread_has_an_arena_and_the_hole_stays() -> None:
    """What the other test is held against; where this fails, glibc has changed and the setting may go."""
    found = outcome("as it is")
    assert found["arenas"] > 1
    assert found["kept"] > 20 << 20


def test_what_is_made_for_good_is_not_searched_for_garbage() -> None:
    before = gc.get_freeze_count()
    try:
        with nothing_to_collect():
            assert not gc.isenabled()
            kept = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() - before >= len(kept)
        with pytest.raises(ImportError), nothing_to_collect():
            raise ImportError
        assert gc.isenabled()
    finally:
        gc.unfreeze()
