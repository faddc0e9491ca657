"""Gives the pods of a claim their metadata files: a step of its preparation, where it is configured."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from node_agent.allocation.grants import Grant, Hold, Notes
from node_agent.cdi.edits import ContainerEdits, Mount
from node_agent.cdi.files import READ_ONLY
from node_agent.dra.metadata import Attributes, RequestMetadata, metadata_of
from node_agent.errors import AllocationError
from node_agent.kit.files import write_atomic
from node_agent.kit.lane import Lane
from node_agent.model.claim import Claim

FOLDER = "dra-device-metadata"


class MetadataStep:
    """Writes the files below ``folder``, that of ``driver`` on the host; ``attributes`` are those published by now."""

    name = "device-metadata"

    def __init__(
        self, *, driver: str, folder: Path, attributes: Callable[[], Mapping[str, Attributes]], lane: Lane
    ) -> None:
        self._driver = driver
        self._folder = folder
        self._attributes = attributes
        self._lane = lane

    def applies(self, claim: Claim, grant: Grant) -> bool:
        return True

    async def do(self, claim: Claim, grant: Grant) -> Notes:
        """Write a file for each request; the notes say where they are, for mounts and for the undo."""
        files = metadata_of(claim, self._driver, self._attributes())
        await self._lane.run("write device metadata", lambda: self._write(files))
        return {file.request: [str(self._folder / file.host_path), str(file.container_path)] for file in files}

    async def undo(self, grant: Grant) -> None:
        """Remove all files of the claim."""
        namespace, _, name = grant.holder.name.partition("/")
        path = self._folder / FOLDER / f"{namespace}_{name}"
        await self._lane.run("remove device metadata", lambda: _remove(path))

    def edits(self, grant: Grant, hold: Hold) -> ContainerEdits:
        """The request's file, once: with the first of its devices."""
        request = hold.request.partition("/")[0]
        first = next(one for one in grant.holds if one.request.partition("/")[0] == request)
        paths = grant.steps.get(self.name, {}).get(request)
        if first != hold or paths is None:
            return ContainerEdits()
        host_path, container_path = paths
        return ContainerEdits(mounts=(Mount(host_path=host_path, container_path=container_path, options=READ_ONLY),))

    def _write(self, files: Sequence[RequestMetadata]) -> None:
        for file in files:
            path = self._folder / file.host_path
            try:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                write_atomic(path, file.content, mode=0o644)
            except OSError as error:
                raise AllocationError(f"cannot write the pod's device metadata {path}: {error.strerror}") from error


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise AllocationError(f"cannot remove the device metadata in {path}: {error.strerror}") from error
