"""A refusal becomes the error that it means, and keeps what the server said; what is no API server's is shown."""

import json
from typing import Any

import pytest

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
from node_agent.kube.answers import content, refusal
from node_agent.kube.transport import Answer

PATH = "/apis/resource.k8s.io/v1/resourceslices"


def status(code: int, reason: str = "", message: str = "why", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def answer(code: int, body: Any, **headers: str) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status=code, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=raw)


def refused(code: int, body: Any, **headers: str) -> KubeApiError:
    with pytest.raises(KubeApiError) as error:
        content("create", PATH, answer(code, body, **headers))
    return error.value


def test_a_success_is_its_json() -> None:
    assert content("get", PATH, answer(200, {"a": [1]})) == {"a": [1]}
    assert content("create", PATH, answer(201, {})) == {}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", KubeApiError),
        (401, "Unauthorized", KubeApiError),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", KubeApiError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Expired),
        (410, "Gone", Expired),
        (415, "UnsupportedMediaType", KubeApiError),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (502, "", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_refusal_has_its_kind_and_keeps_the_servers_words(
    code: int, reason: str, kind: type[KubeApiError]
) -> None:
    error = refused(code, status(code, reason))
    assert type(error) is kind
    assert (error.code, error.reason, error.verb, error.path) == (code, reason, "create", PATH)
    assert str(error).startswith(f"the API server refused to create {PATH} ({code} {reason}): why")


def test_a_missing_right_is_named_with_what_to_do() -> None:
    said = 'resourceslices.resource.k8s.io is forbidden: User "a" cannot create resource "resourceslices"'
    error = refused(403, status(403, "Forbidden", said))
    assert said in str(error)
    assert str(error).endswith("grant it in a role that is bound to that user")


def test_admissions_no_is_not_taken_for_a_missing_right() -> None:
    error = refused(403, status(403, "Forbidden", "ValidatingAdmissionPolicy 'x' denied request: not your node"))
    assert isinstance(error, Forbidden)
    assert "grant" not in str(error)


def test_invalid_fields_are_kept_one_by_one() -> None:
    causes = [
        {"reason": "FieldValueInvalid", "field": "spec.driver", "message": "field is immutable"},
        {"reason": "FieldValueRequired", "field": "spec.pool"},
    ]
    error = refused(422, status(422, "Invalid", "two things", causes=causes))
    assert error.causes == (("spec.driver", "field is immutable"), ("spec.pool", ""))


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"retry_after": "3"}, {}, 3.0),
        ({"retry_after": "0.5"}, {}, 0.5),
        ({}, {"retryAfterSeconds": 7}, 7.0),
        ({"retry_after": "3"}, {"retryAfterSeconds": 7}, 3.0),
        ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, None),
        ({"retry_after": "-1"}, {}, None),
        ({}, {}, None),
    ],
)
def test_how_long_the_server_wants_to_be_left_alone_is_kept(
    headers: dict[str, str], details: dict[str, Any], seconds: float | None
) -> None:
    assert refused(429, status(429, "TooManyRequests", **details), **headers).retry_after == seconds


def test_a_refusal_by_something_in_between_is_shown_in_short() -> None:
    error = refused(502, b"<html>\n<body>Bad   Gateway</body>" + b"x" * 10_000)
    assert isinstance(error, Unavailable)
    assert "<html> <body>Bad Gateway</body>xxx" in str(error)
    assert len(str(error)) < 700


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00", b"[1]", b'"text"', b"null", b'{"kind": "Node"}'])
def test_a_refusal_without_a_status_is_one_by_its_code(body: bytes) -> None:
    assert refused(404, body).code == 404
    assert isinstance(refused(404, body), NotFound)


def test_a_redirect_is_no_success() -> None:
    assert refused(302, b"").code == 302


@pytest.mark.parametrize("body", [b"<html>log in here", b'["a", "list"]', b"null", b"", b'{"cut": "off'])
def test_a_success_that_is_no_json_object_is_no_success(body: bytes) -> None:
    error = refused(200, body)
    assert isinstance(error, Unavailable)
    assert f"something else than a JSON object: {body.decode() or 'nothing'}" in str(error)


def test_a_watchs_error_event_is_a_refusal_too() -> None:
    error = refusal("watch", PATH, {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    assert isinstance(error, Expired)
    assert error.verb == "watch"


def test_a_status_that_says_nothing_is_still_an_error() -> None:
    error = refusal("watch", PATH, {"code": None, "details": None, "message": None})
    assert (type(error), error.code) == (KubeApiError, 0)
    assert "no reason given" in str(error)
