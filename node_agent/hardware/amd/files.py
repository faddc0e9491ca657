"""Single values in /sys. A file that is not there, or has nothing to say on this GPU, is None."""

import errno
from pathlib import Path

# What amdgpu answers for a sensor that a GPU does not have.
_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.ENODATA, errno.EINVAL})


def text(path: Path) -> str | None:
    """What a file says. Raises OSError where it is there and cannot be read."""
    try:
        return path.read_text(errors="replace").strip() or None
    except OSError as error:
        if error.errno in _NOTHING:
            return None
        raise


def number(path: Path, base: int = 10) -> int | None:
    """The number in a file; None where it has another text. Raises OSError as ``text``."""
    found = text(path)
    try:
        return None if found is None else int(found, base)
    except ValueError:
        return None


def properties(path: Path) -> dict[str, int]:
    """The numbers in a file of KFD's: a name and a value a line. Raises OSError as ``text``."""
    words = (line.split() for line in (text(path) or "").splitlines())
    return {line[0]: int(line[1]) for line in words if len(line) == 2 and line[1].isdecimal()}
