"""Where the API server is, who we are there, and why it is trusted; ``find`` finds it, ``credentials`` reads it."""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from node_agent.errors import KubeAccessError

Pem = Path | bytes
"""A file, which is read again when it changes, or its content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """How the API server is reached; ``source`` is where that was found, for messages.

    ``server`` is its URL, ``server_name`` what its certificate is issued for where that differs from the URL. Without
    an ``authority`` the system's own are trusted, and with ``verify`` off anybody. ``namespace`` is ours. A token may
    be a file, since those of pods are renewed.

    Raises:
        KubeAccessError: the server is no URL, or there is a certificate without its key.
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

    def __post_init__(self) -> None:
        if not _is_url(self.server):
            raise KubeAccessError(f"{self.source}: server {self.server!r} is no URL such as https://10.96.0.1:443")
        if (self.certificate is None) is not (self.key is None):
            raise KubeAccessError(f"{self.source}: a client certificate and its key belong together; one is missing")


def _is_url(server: str) -> bool:
    try:
        url = urlsplit(server)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False
