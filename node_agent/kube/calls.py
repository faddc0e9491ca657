"""Carries calls to the API server, and again where that does no harm: the one place with retries.

``client`` makes the calls, ``transport`` has the connections, ``answers`` the errors that refusals mean.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct, field

from node_agent.errors import KubeAccessError, KubeError, TooManyRequests, Unavailable
from node_agent.kit.backoff import pauses, spread
from node_agent.kit.logs import Log
from node_agent.kube.access import Access
from node_agent.kube.answers import content, refused
from node_agent.kube.credentials import Credentials
from node_agent.kube.resources import Object
from node_agent.kube.transport import Answer, Endpoint, Outgoing, Transport, Unreached
from node_agent.telemetry.catalogue import API_REQUESTS

METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
# The longest pause of a watch in which nothing has to be wrong: with bookmarks something comes about once a minute.
SILENCE_SECONDS = 150.0
LONGEST_PAUSE = 5.0

log = Log(__name__)


class Patience(Struct, frozen=True, kw_only=True):
    """Seconds: for one try, for a call with all its tries, and the first pause between two."""

    attempt: float = 10.0
    budget: float = 30.0
    pause: float = 0.2


class Call(Struct, frozen=True, kw_only=True):
    """What is asked: ``verb`` is RBAC's; ``repeatable`` says whether it does no harm when it is carried out twice."""

    verb: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = "application/json"
    repeatable: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"

    @property
    def plural(self) -> str:
        """What it is about, as the API calls it: ``nodes``; empty where it asks which versions there are."""
        parts = self.path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        return next(iter(rest[2:] if rest[:1] == ["namespaces"] else rest), "")


class Calls:
    """One identity's calls to one API server. An async context manager: its connections end with the block."""

    def __init__(self, access: Access, *, agent: str, patience: Patience) -> None:
        self._access = access
        self._agent = agent
        self._patience = patience
        self._credentials = Credentials(access)
        self._prefix = urlsplit(access.server).path.rstrip("/")
        self._transport = Transport(_endpoint(access, self._credentials))

    async def __aenter__(self) -> "Calls":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.__aexit__()

    async def object(self, call: Call) -> Object:
        """The JSON of the answer.

        Raises:
            KubeError: the last try's failure, after as many as the patience allows.
        """
        with API_REQUESTS.timed(call.verb, call.plural):
            return await self._answered(call)

    async def _answered(self, call: Call) -> Object:
        deadline = time.monotonic() + self._patience.budget
        for pause in pauses(first=self._patience.pause, longest=LONGEST_PAUSE):
            try:
                return await self._try(call, deadline - time.monotonic())
            except (TooManyRequests, Unavailable) as error:
                wait = spread(pause) + (error.retry_after or 0.0)
                if not _may_repeat(call, error) or time.monotonic() + wait >= deadline:
                    raise
                log.debug("asking the API server again", call=str(call), seconds=round(wait, 1), reason=str(error))
            await asyncio.sleep(wait)
        raise AssertionError("pauses are endless")

    @asynccontextmanager
    async def lines(self, call: Call) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an answer that goes on, tried once; the connection is closed with the block.

        Raises:
            KubeError: also by the lines, when the connection breaks or is silent for too long.
        """
        async with AsyncExitStack() as opened:
            with self._telling(call):
                stream = self._transport.stream(
                    self._outgoing(call), timeout=self._patience.attempt, silence=SILENCE_SECONDS
                )
                answer = await opened.enter_async_context(stream)
            # Outside of the telling: what the block raises is the caller's own affair.
            if isinstance(answer, Answer):
                raise refused(call.verb, call.path, answer)
            yield await opened.enter_async_context(aclosing(self._told(call, answer)))

    async def _told(self, call: Call, lines: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        while True:
            with self._telling(call):
                line = await anext(lines, None)
            if line is None:
                return
            yield line

    async def _try(self, call: Call, left: float) -> Object:
        with self._telling(call):
            answer = await self._transport.request(self._outgoing(call), min(left, self._patience.attempt))
        return content(call.verb, call.path, answer)

    def _outgoing(self, call: Call) -> Outgoing:
        headers = {"User-Agent": self._agent, "Accept": "application/json"}
        if token := self._credentials.token():
            headers["Authorization"] = f"Bearer {token}"
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        query = f"?{urlencode(call.query)}" if call.query else ""
        return Outgoing(
            method=METHODS.get(call.verb, "GET"),
            target=f"{self._prefix}{call.path}{query}",
            headers=headers,
            body=msgspec.json.encode(call.body) if call.body is not None else b"",
        )

    @contextmanager
    def _telling(self, call: Call) -> Iterator[None]:
        """Turn what goes wrong on the way into errors that say on which."""
        server = self._access.server
        try:
            yield
        except ssl.SSLCertVerificationError as error:
            raise self._distrust(error) from error
        except OSError as error:
            reason = str(error) or "nothing came for too long"
            raise Unavailable(f"{server} did not answer {call}: {reason}", verb=call.verb, path=call.path) from error

    def _distrust(self, error: ssl.SSLCertVerificationError) -> KubeError:
        access = self._access
        advice = f"is the certificate authority of {access.source} that server's?"
        if "expired" in error.verify_message:
            advice = "renew it there, or set the clock right here"
        elif "mismatch" in error.verify_message:
            advice = f"{access.source} knows it by a name that is not in its certificate: set tls-server-name there"
        elif access.authority is None:
            advice = f"{access.source} names no certificate authority, and the system's own do not know it"
        return KubeAccessError(f"{access.server} cannot be trusted: {error.verify_message}; {advice}")


def _endpoint(access: Access, credentials: Credentials) -> Endpoint:
    url = urlsplit(access.server)
    secure = url.scheme == "https"
    return Endpoint(
        host=url.hostname or "",
        port=url.port or (443 if secure else 80),
        server_name=access.server_name,
        tls=credentials.tls if secure else lambda: None,
    )


def _may_repeat(call: Call, error: TooManyRequests | Unavailable) -> bool:
    """Whether a call that failed so does no harm when it is carried out twice, or was certainly not carried out."""
    return call.repeatable or isinstance(error, TooManyRequests) or isinstance(error.__cause__, Unreached)
