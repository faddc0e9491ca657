"""Notices that the configuration may be another one, and reads it again: files by their identity, the node's label."""

import asyncio
from collections.abc import AsyncIterator, Hashable

from node_agent.config.resolve import Resolved, Sources
from node_agent.errors import ConfigError
from node_agent.kit.latest import Latest, changes

# A look is a few stats; inotify would need a second way for the nodes on which its instances run out.
LOOK_SECONDS = 2.0
# What has stood for so long is whole.
STAND_SECONDS = 0.5


async def readings(sources: Sources, label: Latest[str | None]) -> AsyncIterator[Resolved | ConfigError]:
    """What the sources say, soon and whenever they may say something else, or why that cannot be used.

    A change is read once it has stood for a moment: a file that is being written is not read half. What cannot be read
    at all, be it for want of a file descriptor, is tried again.
    """
    seen: Hashable = None
    read: Hashable = None

    def pause() -> float:
        return LOOK_SECONDS if seen == read else STAND_SECONDS

    async for _ in changes(label, every=pause):
        before, seen = seen, (sources.identity(), label.value)
        if seen == read or seen != before:
            continue
        try:
            found: Resolved | ConfigError = await asyncio.to_thread(sources.resolve, label.value)
        except ConfigError as error:
            found = error
        # What was swapped in the meantime is read at the next look.
        if (sources.identity(), label.value) == seen:
            seen = None if isinstance(found, ConfigError) and isinstance(found.__cause__, OSError) else seen
            read = seen
            yield found
