"""Socket paths fit the kernel, and only one's own socket is removed."""

import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.kit.unix import LONGEST_PATH, checked, identity, remove_own


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def can_bind(path: Path) -> bool:
    try:
        bind(path)
    except OSError:
        return False
    path.unlink()
    return True


@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_path_is_accepted_exactly_where_the_kernel_would_bind_it(tmp_path: Path, letter: str) -> None:
    bytes_left = LONGEST_PATH - len(os.fsencode(tmp_path)) - 1
    fits = tmp_path / (letter * (bytes_left // len(letter.encode())))
    too_long = tmp_path / f"{fits.name}{letter}"
    assert checked(fits) == fits
    assert can_bind(fits)
    with pytest.raises(ValueError, match="use a shorter folder"):
        checked(too_long)
    assert not can_bind(too_long)


@given(st.text(alphabet="aé/", min_size=1, max_size=150))
def test_only_the_length_in_bytes_counts(text: str) -> None:
    path = Path(text)
    if len(os.fsencode(path)) <= 107:
        assert checked(path) is path
    else:
        with pytest.raises(ValueError, match=f"has {len(os.fsencode(path))} bytes; the kernel allows 107"):
            checked(path)


def test_nothing_has_no_identity(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert identity(tmp_path / "gone") is None
    assert identity(tmp_path / "file" / "below-a-file") is None


def test_ones_own_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "own.sock"
    bind(path)
    assert remove_own(path, identity(path))
    assert not path.exists()


def test_a_socket_that_another_put_in_its_place_stays(tmp_path: Path) -> None:
    path = tmp_path / "shared.sock"
    bind(path)
    own = identity(path)
    path.unlink()
    time.sleep(0.02)  # file systems keep time in ticks, and give the same inode number again
    bind(path)
    assert not remove_own(path, own)
    assert path.is_socket()


def test_a_socket_that_is_gone_or_never_was_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "own.sock"
    bind(path)
    own = identity(path)
    path.unlink()
    assert not remove_own(path, own)
    bind(path)
    assert not remove_own(path, None)
    assert path.is_socket()


def test_a_socket_stays_ones_own_when_its_mode_changes_it_moves_or_someone_connects(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "hidden.sock"))
        listener.listen()
        own = identity(tmp_path / "hidden.sock")
        time.sleep(0.02)
        os.chmod(tmp_path / "hidden.sock", 0o600)
        os.rename(tmp_path / "hidden.sock", tmp_path / "own.sock")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "own.sock"))
        assert identity(tmp_path / "own.sock") == own
        assert remove_own(tmp_path / "own.sock", own)
