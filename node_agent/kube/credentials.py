"""What an access's files say now: tokens of pods are renewed every hour, certificates every few months."""

import os
import ssl
from pathlib import Path

from node_agent.errors import KubeAccessError
from node_agent.kube.access import Access, Pem

Stamp = tuple[int, int, int]


class Credentials:
    """Reads the token and the certificates of ``access`` when they are asked for, and again when they have changed."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = ""
        self._token_stamp: Stamp | None = None
        self._context: ssl.SSLContext | None = None
        self._context_stamps: tuple[Stamp | None, ...] = ()

    def token(self) -> str:
        """The bearer token, or ``""`` where there is none.

        Raises:
            KubeAccessError: its file cannot be read.
        """
        source = self._access.token
        if isinstance(source, str):
            return source
        stamp = _stamp(source)
        if stamp != self._token_stamp:
            self._token = _read(source).decode("ascii", errors="replace").strip()
            self._token_stamp = stamp
        return self._token

    def tls(self) -> ssl.SSLContext:
        """What a new connection trusts and shows.

        Raises:
            KubeAccessError: a file cannot be read, or does not hold what it should.
        """
        access = self._access
        stamps = tuple(_stamp(source) for source in (access.authority, access.certificate, access.key))
        if self._context is None or stamps != self._context_stamps:
            self._context, self._context_stamps = _context(access), stamps
        return self._context


def _context(access: Access) -> ssl.SSLContext:
    # Not ssl.create_default_context: from Python 3.13 on it refuses authorities as many clusters have them, and it
    # trusts the system's where ours is empty.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    _trust(context, access)
    if access.certificate is not None:
        _show(context, access)
    return context


def _trust(context: ssl.SSLContext, access: Access) -> None:
    if access.authority is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=_read(access.authority).decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise KubeAccessError(f"{_name(access.authority)} of {access.source} holds no certificates: {error}") from error


def _show(context: ssl.SSLContext, access: Access) -> None:
    """Load the client's certificate and key; the ssl module takes them from a file only, so they get one in memory."""
    certificate = _read(access.certificate or b"")
    key = _read(access.key) if access.key is not None else b""
    descriptor = os.memfd_create("client certificate")
    with os.fdopen(descriptor, "wb") as file:
        file.write(certificate.rstrip() + b"\n" + key)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        except (ssl.SSLError, ValueError) as error:
            names = f"{_name(access.certificate)} and {_name(access.key)}"
            raise KubeAccessError(f"{names} of {access.source} are no certificate with its key: {error}") from error


def _read(source: Pem) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise KubeAccessError(f"{source} cannot be read: {error.strerror}") from error


def _stamp(source: Pem | None) -> Stamp | None:
    """Changes when a file does; None where there is nothing that could change."""
    if not isinstance(source, Path):
        return None
    try:
        found = source.stat()
    except OSError as error:
        raise KubeAccessError(f"{source} cannot be read: {error.strerror}") from error
    return found.st_mtime_ns, found.st_ino, found.st_size


def _name(source: Pem | None) -> str:
    return str(source) if isinstance(source, Path) else "the inline data"
