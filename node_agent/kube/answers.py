"""What the API server's refusals mean: an error of our tree for each Status that is no success."""

from collections.abc import Mapping
from typing import Any

import msgspec

from node_agent.errors import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeApiError,
    NotFound,
    TooManyRequests,
    Unavailable,
)
from node_agent.kit.shallow import decoded
from node_agent.kube.resources import Object
from node_agent.kube.transport import Answer

KINDS: Mapping[int, type[KubeApiError]] = {
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}
LONGEST_TEXT = 500


def content(verb: str, path: str, answer: Answer) -> Object:
    """The JSON of a successful answer.

    Raises:
        KubeApiError: it is no success, or no JSON object.
    """
    if answer.status >= 300:
        raise refused(verb, path, answer)
    try:
        return msgspec.convert(decoded(answer.body), Object)
    except msgspec.DecodeError as error:
        text = f"{verb} {path} was answered with something else than a JSON object: {_text(answer.body)}"
        raise Unavailable(text, verb=verb, path=path, code=answer.status) from error


def refused(verb: str, path: str, answer: Answer) -> KubeApiError:
    """The error that an answer other than success stands for."""
    return refusal(verb, path, _status(answer), retry_after=_retry_after(answer.headers))


def refusal(verb: str, path: str, status: Mapping[str, Any], retry_after: float | None = None) -> KubeApiError:
    """The error that a Status stands for, be it an answer or a watch's ERROR event."""
    code, reason = int(status.get("code") or 0), str(status.get("reason") or "")
    details = status.get("details") or {}
    causes = tuple((str(one.get("field", "")), str(one.get("message", ""))) for one in details.get("causes") or ())
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    said = str(status.get("message") or reason or "no reason given")
    return _kind(code, reason)(
        f"the API server refused to {verb} {path} ({code} {reason}): {said}{_advice(code, said)}",
        verb=verb,
        path=path,
        code=code,
        reason=reason,
        name=str(details.get("name") or ""),
        causes=causes,
        retry_after=retry_after,
    )


def _kind(code: int, reason: str) -> type[KubeApiError]:
    if reason == "AlreadyExists":
        return AlreadyExists
    return KINDS.get(code, Unavailable if code >= 500 else KubeApiError)


def _advice(code: int, said: str) -> str:
    if code == 401:
        return "; the token or the client certificate is not valid there, or no longer"
    if code == 403 and " cannot " in said:
        return "; grant it in a role that is bound to that user"
    return ""


def _status(answer: Answer) -> Mapping[str, Any]:
    """The Status in an answer; what stands between us and the server may have answered something else."""
    try:
        status = decoded(answer.body)
    except msgspec.DecodeError:
        status = None
    if not isinstance(status, dict) or status.get("kind") != "Status":
        status = {"message": _text(answer.body)}
    return status | {"code": answer.status}


def _text(body: bytes) -> str:
    text = " ".join(body[:LONGEST_TEXT].decode(errors="replace").split())
    return text or "nothing"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; the header's other form, a date, is not one that API servers use."""
    value = headers.get("retry-after", "")
    return float(value) if value.replace(".", "", 1).isdigit() else None
