"""``make fuzz-guided``: what strangers may send, guided by the code that it reaches (atheris, fetched for it).

``python -m tests.guided TARGET [SECONDS]`` runs one of ``TARGETS`` from its own seeds. What is raised beyond the
errors that say what is wrong with an input, and one that takes ten seconds, end the run; they are printed, and in
``build/fuzz``. Of YAML and JSON the parsers are in C, which is not followed: only what Python does with their values.
"""

import importlib
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

FOUND = Path("build/fuzz")
LONGEST_SECONDS, LONGEST_BYTES = 10, 4096


def fuzz(name: str, seconds: int) -> None:
    """Run one target for so long; ends the process."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["node_agent", "h11", "yaml"]):
        target = importlib.import_module("tests.guided.targets").TARGETS[name]
    seeds = Path(tempfile.mkdtemp(prefix="seeds-"))
    for number, seed in enumerate(target.seeds):
        (seeds / str(number)).write_bytes(seed)
    FOUND.mkdir(parents=True, exist_ok=True)

    def once(data: bytes) -> None:
        with suppress(*target.expected):
            target.take(data)

    options = [
        f"-max_total_time={seconds}",
        f"-max_len={LONGEST_BYTES}",
        f"-timeout={LONGEST_SECONDS}",
        f"-artifact_prefix={FOUND}/{name}-",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, os.fspath(seeds)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60)
