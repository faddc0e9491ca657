"""Device nodes for who may not make any: ``stat`` answers for the placeholders that ``tree`` writes in their place."""

import os
import re
import stat as modes
from pathlib import Path

_PLACEHOLDER = re.compile(r"c (\d+):(\d+)\n")
_LONGEST = 32


def stat(path: Path) -> os.stat_result:
    """As ``os.stat``, but a placeholder is the character device that it names. Raises OSError as ``os.stat``."""
    found = os.stat(path)
    if not modes.S_ISREG(found.st_mode) or found.st_size > _LONGEST:
        return found
    named = _PLACEHOLDER.fullmatch(path.read_text(errors="replace"))
    if named is None:
        return found
    mode = modes.S_IFCHR | modes.S_IMODE(found.st_mode)
    # Owned by root, as the real node would be.
    return os.stat_result((mode, *found[1:4], 0, 0, *found[6:]), {"st_rdev": os.makedev(int(named[1]), int(named[2]))})
