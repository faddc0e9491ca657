"""Reads JSON that strangers have written parts of, without being stopped by how deep they have nested it.

Whoever may make a claim may put ten kibibytes of anything into it: five thousand lists in each other are more than a
parser takes, and everybody else's claims are in the same answer of the API server.
"""

import re
from typing import Any

import msgspec

DEEPEST = 100
"""Levels; nothing that is read has as many. What lies deeper is read as null where the parser gives up."""

_MARK = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def decoded(document: bytes) -> Any:
    """What a document says. Raises msgspec.DecodeError where it is no JSON."""
    try:
        return msgspec.json.decode(document)
    except RecursionError:
        return msgspec.json.decode(shallow(document))


def shallow(document: bytes, deepest: int = DEEPEST) -> bytes:
    """The document with null in the place of each list and object that more than ``deepest`` others are around."""
    kept, level, since = [], 0, 0
    for mark in _MARK.finditer(document):
        if mark[0] in (b"[", b"{"):
            level += 1
            if level == deepest + 1:
                kept += [document[since : mark.start()], b"null"]
        elif mark[0] in (b"]", b"}"):
            if level == deepest + 1:
                since = mark.end()
            level -= 1
    return b"".join([*kept, document[since:]])
