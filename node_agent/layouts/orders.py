"""What layout the node is to have, and who says so: the node's label, or else the configuration."""

import asyncio
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from node_agent.config.settings import Settings
from node_agent.errors import ConfigError
from node_agent.kit.latest import Latest, changes
from node_agent.partition.configs import Layouts, parse

LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"

# How often the file of layouts is looked at; a look is one stat.
LOOK_SECONDS = 10.0
# Without the labels by then the configuration holds until they are known.
PATIENCE_SECONDS = 10.0


class Order(Struct, frozen=True, kw_only=True):
    """The layout ``name`` that ``source`` asks for, and the terms.

    ``layouts`` are those of the file, None where the usual ones of the node's GPUs are meant; ``trouble`` says why the
    file cannot be used. ``leaves`` name GPUs that claims or others cut. ``refuse``: what is in use is not waited for.
    ``yields``: somebody else who cuts the GPUs goes first.
    """

    name: str
    source: str
    layouts: Layouts | None = None
    trouble: str = ""
    leaves: tuple[str, ...] = ()
    refuse: bool = False
    yields: bool = True


class Orders:
    """A service: keeps ``order`` what the node's ``labels``, the settings in force and the file of layouts say.

    ``labels`` are None as long as nobody tells them: then only the configuration counts.
    """

    def __init__(self, settings: Latest[Settings], labels: Latest[Mapping[str, str] | None]) -> None:
        self._settings = settings
        self._labels = labels
        self.order: Latest[Order | None] = Latest(None)
        self.known = asyncio.Event()
        """Set once what is wanted has been asked for: until then no order is no word that nothing is wanted."""

    async def run(self, *, expects_labels: bool = False) -> None:
        """Follow until cancelled; labels that are expected are waited for, since they may ask for something else."""
        if expects_labels:
            await self._labels_known()
        async for _ in changes(self._settings, self._labels, every=self._pause):
            self.order.set(await asyncio.to_thread(self._read))
            self.known.set()

    async def _labels_known(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for labels in self._labels.watch():
                    if labels is not None:
                        return

    def _pause(self) -> float:
        return LOOK_SECONDS if self.order.value is not None and self._settings.value.mig_config_file else math.inf

    def _read(self) -> Order | None:
        settings, label = self._settings.value, (self._labels.value or {}).get(LABEL)
        name = label or settings.mig_config
        if not name or settings.mig_layouts == "never":
            return None
        layouts, trouble = _layouts(settings.mig_config_file)
        return Order(
            name=name,
            source=f"label {LABEL}" if label else "agent.mig.config",
            layouts=layouts,
            trouble=trouble,
            leaves=(*settings.mig_on_demand, *settings.exclude),
            refuse=settings.mig_when_in_use == "refuse",
            yields=settings.mig_layouts == "auto",
        )


def _layouts(file: Path | None) -> tuple[Layouts | None, str]:
    """The layouts of a file, or why there are none."""
    if file is None:
        return None, ""
    try:
        return parse(file.read_bytes()), ""
    except OSError as error:
        return None, f"agent.mig.configFile: {file}: cannot be read: {error.strerror}"
    except ConfigError as error:
        return None, f"agent.mig.configFile: {file}: {error}"
