"""The health document of ``health`` as it is now, and each that follows: what all that tell of health look at."""

from collections.abc import AsyncGenerator, Callable

from node_agent.kit.latest import Latest, changes
from node_agent.model.health import HealthReport
from node_agent.model.inventory import Inventory
from node_agent.reporting.health import Counts, HealthDocument, Names, health_document

# A watcher hears something at least so often; one that hears nothing for longer has lost its connection.
AGAIN_SECONDS = 10.0


class HealthView:
    """The document as it is now, and each that follows."""

    def __init__(
        self,
        *,
        node: str,
        inventory: Latest[Inventory],
        report: Latest[HealthReport],
        names: Callable[[], Names],
        counts: Callable[[], Counts],
    ) -> None:
        self._node = node
        self._inventory = inventory
        self._report = report
        self._names = names
        self._counts = counts

    @property
    def sources(self) -> tuple[Latest[Inventory], Latest[HealthReport]]:
        """What changes when the document does."""
        return self._inventory, self._report

    @property
    def document(self) -> HealthDocument:
        return health_document(
            node=self._node,
            inventory=self._inventory.value,
            report=self._report.value,
            names=self._names(),
            counts=self._counts(),
        )

    async def watch(self, again_seconds: float = AGAIN_SECONDS) -> AsyncGenerator[HealthDocument, None]:
        """The present document, each newer one, and the same again after so long a silence.

        A slow watcher skips what was overtaken, and holds up nobody.
        """
        async for _ in changes(*self.sources, every=lambda: again_seconds):
            yield self.document
