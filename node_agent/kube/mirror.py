"""A local copy of what the API server has of one resource, kept up to date by watching it through ``client``."""

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from node_agent.errors import Expired, KubeApiError, KubeError
from node_agent.kit.backoff import pauses, spread
from node_agent.kit.latest import Latest
from node_agent.kit.logs import Log, Steady
from node_agent.kube.client import EventType, KubeClient, WatchEvent
from node_agent.kube.resources import Object, Resource, key_of
from node_agent.telemetry.catalogue import WATCH_RESTARTS

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
# Where nothing answers, or somebody who is just starting or has too much to do, our place is as good as it was.
NO_WORD = frozenset({0, 401, 403, 429, 503})
# A watch that lasted this long ended for another reason than the one before it.
STEADY_SECONDS = 10.0

log = Log(__name__)


class Mirror:
    """A service: ``run`` keeps ``objects``, by ``namespace/name`` or name, as the server has them.

    They are those that the selectors name and ``keep`` wants, which is for what no selector can say, and are without
    ``managedFields``. They are no answer before ``synced``, and may be ``staleness`` seconds behind. A watch that broke
    goes on where it was; where the server has forgotten that place, or says anything else that is no success, all is
    listed anew. ``restarts`` counts how often the watch began again, for whatever reason; ``follows`` says that it goes
    on just now.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str = "",
        fields: str = "",
        labels: str = "",
        keep: Callable[[Object], bool] = lambda _: True,
    ) -> None:
        self._client = client
        self._resource = resource
        self._selection = {"namespace": namespace, "fields": fields, "labels": labels}
        self._keep = keep
        self._version = ""
        self._heard = -math.inf
        self._troubles = Steady()
        self.objects: Latest[Mapping[str, Object]] = Latest({})
        self.synced = Latest(False)
        self.follows = False
        self.restarts = 0

    @property
    def staleness(self) -> float:
        """Seconds since the server was last heard of; it says something about once a minute, if only a bookmark."""
        return time.monotonic() - self._heard

    async def run(self) -> None:
        """Mirror until cancelled."""
        tries = pauses(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
        while True:
            began = time.monotonic()
            await self._follow_or_tell()
            self.restarts += 1
            WATCH_RESTARTS.happened(self._resource.plural)
            if time.monotonic() - began > STEADY_SECONDS:
                tries = pauses(first=FIRST_PAUSE, longest=LONGEST_PAUSE)
            await asyncio.sleep(spread(next(tries)))

    async def _follow_or_tell(self) -> None:
        try:
            await self._follow()
        except Expired:
            self._version = ""
        except KubeError as error:
            # Any other answer may be about it: one whose data were restored from a backup calls it too new for ever.
            if not isinstance(error, KubeApiError) or error.code not in NO_WORD:
                self._version = ""
            if self._troubles.should_say(str(error)):
                log.warning("not up to date", resource=self._resource.plural, reason=str(error))

    async def _follow(self) -> None:
        """List where there is no place to go on from, and watch until the server ends it."""
        if not self._version:
            listing = await self._client.list(self._resource, **self._selection)
            self._version, self._heard = listing.resource_version, time.monotonic()
            self.objects.set({key_of(item): _lean(item) for item in listing.items if self._keep(item)})
            self.synced.set(True)
        async with self._client.watch(self._resource, self._version, **self._selection) as events:
            self._hear()
            self.follows = True
            try:
                async for event in events:
                    self._take(event)
            finally:
                self.follows = False

    def _hear(self) -> None:
        self._heard = time.monotonic()
        self._troubles.clear()

    def _take(self, event: WatchEvent) -> None:
        self._hear()
        self._version = event.object["metadata"]["resourceVersion"]
        if event.type is EventType.BOOKMARK:
            return
        key, known = key_of(event.object), self.objects.value
        wanted = event.type is not EventType.DELETED and self._keep(event.object)
        if wanted or key in known:
            others = {name: item for name, item in known.items() if name != key}
            self.objects.set(others | {key: _lean(event.object)} if wanted else others)


def _lean(item: Object) -> Object:
    """Who set which field is often half of an object, and nobody here asks."""
    return item | {"metadata": {name: value for name, value in item["metadata"].items() if name != "managedFields"}}
