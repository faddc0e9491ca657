"""Where the API server is, who we are there, and what makes us trust it."""

from dataclasses import dataclass, field
from pathlib import Path

Pem = Path | bytes
"""A file, which is read again when it changes, or its content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How the API server is reached; ``source`` is where that was found, for messages.

    ``server`` is its URL, ``server_name`` what its certificate is issued for where that differs from the URL. Without
    an ``authority`` the system's own are trusted, and with ``verify`` off anybody. ``namespace`` is ours. A token may
    be a file, since those of pods are renewed.
    """

    server: str
    source: str
    namespace: str = "default"
    authority: Pem | None = None
    server_name: str = ""
    verify: bool = True
    token: Path | str = field(default="", repr=False)
    certificate: Pem | None = None
    key: Pem | None = field(default=None, repr=False)
