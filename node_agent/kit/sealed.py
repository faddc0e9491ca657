"""JSON that shows whether it is what was written: ``{"version": 1, "checksum": …, "payload": {…}}``.

The checksum is over the bytes of the payload as they stand in the file, so no version's idea of how to write them
matters.
"""

import hashlib

import msgspec


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    checksum: str
    payload: msgspec.Raw


def seal(payload: bytes, version: int) -> bytes:
    """The content of a file for a payload, which is JSON. Those bytes go into the file as they are."""
    envelope = _Envelope(version=version, checksum=_checksum(payload), payload=msgspec.Raw(payload))
    return msgspec.json.encode(envelope) + b"\n"


def unseal(content: bytes, version: int) -> bytes:
    """The payload that ``seal`` got. Raises ValueError, which says in what way the content is something else."""
    envelope = msgspec.json.decode(content, type=_Envelope)
    if envelope.version != version:
        raise ValueError(f"it is of version {envelope.version}; this agent reads version {version} only")
    payload = bytes(envelope.payload)
    if envelope.checksum != _checksum(payload):
        raise ValueError("its checksum does not fit: it was changed or cut after it had been written")
    return payload


def _checksum(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
