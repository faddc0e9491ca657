"""Certificates for tests of TLS; ``make.sh`` says what they are."""

import ssl
from pathlib import Path

FOLDER = Path(__file__).parent
AUTHORITY = FOLDER / "authority.crt"
STRANGER = FOLDER / "stranger.crt"
SERVER = FOLDER / "server.crt"
CLIENT, CLIENT_KEY = FOLDER / "client.crt", FOLDER / "client.key"


def serving(*, clients: bool = False) -> ssl.SSLContext:
    """What a server at 127.0.0.1 shows; with ``clients`` it asks them for a certificate, too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=AUTHORITY)
    context.load_cert_chain(SERVER, SERVER.with_suffix(".key"))
    context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
    return context
