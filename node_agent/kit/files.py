"""Files that are whole or not there: written beside their place, fsynced, then renamed."""

import os
import tempfile
import time
from itertools import count
from pathlib import Path

ABANDONED_SECONDS = 60.0


def write_atomic(path: Path, content: bytes, mode: int = 0o644, *, lasting: bool = True) -> None:
    """Replace ``path`` with ``content`` so that no reader, and no crash, ever sees a part of it.

    What is not ``lasting`` a power cut may undo or leave in part: for what each boot makes anew.

    The temporary file starts with a dot and does not carry the suffix of ``path``, so that programs which read a
    whole folder by suffix (container runtimes and CDI specs) pass over it.

    Raises:
        OSError: the folder is missing, read-only or full; ``path`` is then as it was.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if lasting:
                os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if lasting:
        sync_folder(path.parent)


def remove(path: Path, *, lasting: bool = True) -> None:
    """Remove a file; one that is not there is fine. What is not ``lasting`` may be there again after a power cut."""
    path.unlink(missing_ok=True)
    if lasting:
        sync_folder(path.parent)


def unfinished(folder: Path, pattern: str) -> list[Path]:
    """What ``write_atomic`` has left of files by a glob pattern, where it was killed; or is writing just now."""
    return sorted(folder.glob(f".{pattern}.*"))


def abandoned(folder: Path, pattern: str) -> list[Path]:
    """Of what is unfinished that which nobody can be writing any more: no write takes so long."""
    return [path for path in unfinished(folder, pattern) if _age(path) > ABANDONED_SECONDS]


def _age(path: Path) -> float:
    """Seconds since it was written last; none where it has just been finished."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def keep_aside(path: Path) -> Path:
    """Keep a damaged file under another name, for people to look at; ``path`` keeps it as well until it is replaced.

    So there is no moment without a file, in which a crash would make a lost one look like one that was never there.
    Raises OSError where it cannot be kept.
    """
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    aside = next(name for name in names if not name.exists() or name.samefile(path))
    if not aside.exists():
        os.link(path, aside)
        sync_folder(aside.parent)
    return aside


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` survive a power cut; a folder that is gone needs none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
