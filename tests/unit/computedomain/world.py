"""A node of a rack with its claims: an API server, a driver's files, and what controller and daemons would do."""

import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from node_agent.cdi.roots import DriverRoots
from node_agent.cdi.writer import SpecWriter
from node_agent.computedomain.claims import DomainClaims
from node_agent.computedomain.domains import Domains
from node_agent.computedomain.edits import DomainFiles
from node_agent.computedomain.names import CLIQUES, DOMAINS, DRIVER, LABEL
from node_agent.computedomain.record import Record
from node_agent.config.settings import Settings
from node_agent.dra import operations
from node_agent.dra.operations import Answer, ClaimRef
from node_agent.kit.lane import Lane
from node_agent.kit.latest import Latest
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import NODES, RESOURCE_CLAIMS, Object
from node_agent.model.claim import ClaimUid
from node_agent.model.inventory import Inventory
from tests.fakes.api_server import ApiServer
from tests.fakes.builders import gpu, inventory
from tests.unit.cdi.test_imex import driver

NODE, CLIQUE, SYSTEM, TEAM = "tray-1", "b2daed23-0000-4000-8000-6a1f00c0ffee.1", "nvidia-dra-driver-gpu", "team-a"

FOR_EVER = 1e9


def rack(clique: str | None = CLIQUE) -> Inventory:
    return inventory([replace(gpu(number), nvlink_domain=clique) for number in range(4)])


def config(kind: str, domain: str, **more: Any) -> Object:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "domainID": domain, **more}


@dataclass
class World:
    server: ApiServer
    folder: Path
    claims: DomainClaims
    record: Record
    inventory: Latest[Inventory]
    trusted: set[str]

    def domain(self, name: str = "training", namespace: str = TEAM) -> str:
        """What a user makes; its UID."""
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"numNodes": 0}}
        return str(self.server.put(DOMAINS, body)["metadata"]["uid"])

    def ready(self, domain: str, status: str = "Ready", node: str = NODE) -> None:
        """What a daemon says of itself."""
        daemons = [{"nodeName": node, "ipAddress": "10.0.0.1", "cliqueID": CLIQUE, "index": 0, "status": status}]
        body = {"metadata": {"name": f"{domain}.{CLIQUE}", "namespace": SYSTEM}, "daemons": daemons}
        self.server.put(CLIQUES, body)

    def ready_domain(self) -> str:
        """One whose daemon is up on this node; its UID."""
        domain = self.domain()
        self.ready(domain)
        return domain

    def claim(
        self, parameters: Object, device: str = "channel-0", *, name: str = "", namespace: str = TEAM
    ) -> ClaimRef:
        """An allocated claim of a template of the controller's."""
        name = name or f"claim-{uuid.uuid4().hex[:6]}"
        devices = {
            "results": [{"request": "r", "driver": DRIVER, "pool": NODE, "device": device}],
            "config": [
                {"source": "FromClaim", "requests": ["r"], "opaque": {"driver": DRIVER, "parameters": parameters}}
            ],
        }
        body = {"metadata": {"name": name, "namespace": namespace}, "status": {"allocation": {"devices": devices}}}
        made = self.server.put(RESOURCE_CLAIMS, body)
        return ClaimRef(uid=ClaimUid(made["metadata"]["uid"]), namespace=namespace, name=name)

    def channel(self, domain: str, namespace: str = TEAM, **more: Any) -> ClaimRef:
        return self.claim(config("ComputeDomainChannelConfig", domain, **more), namespace=namespace)

    def daemon(self, domain: str, namespace: str = SYSTEM) -> ClaimRef:
        return self.claim(config("ComputeDomainDaemonConfig", domain), "daemon-0", namespace=namespace)

    async def prepare(self, ref: ClaimRef) -> Answer:
        return (await self.claims.prepare([ref]))[ref.uid]

    async def unprepare(self, ref: ClaimRef) -> Answer:
        return (await self.claims.unprepare([ref]))[ref.uid]

    @property
    def label(self) -> str | None:
        (node,) = self.server.objects(NODES)
        return (node["metadata"].get("labels") or {}).get(LABEL)

    @property
    def specs(self) -> list[Object]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "cdi").glob("*.json"))]

    @property
    def edits(self) -> Object:
        """What the one spec that there is gives to its one device."""
        (spec,) = self.specs
        (device,) = spec["devices"]
        edits: Object = device["containerEdits"]
        return edits


@asynccontextmanager
async def world(folder: Path, *, tries: Iterable[float] = (FOR_EVER,), channels: int = 8) -> AsyncIterator[World]:
    """A try is answered at once unless there are pauses after which there are more ``tries``."""
    roots = DriverRoots(proc=driver(folder / "proc", count=channels).proc)
    with Lane("files") as lane, pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "pauses", lambda **_: iter(tries))
        async with ApiServer() as server, KubeClient(server.access) as client:
            server.put(NODES, {"metadata": {"name": NODE}})
            record = Record(folder / "compute-domains.json", lane)
            files = DomainFiles(roots=roots, writer=SpecWriter(folder / "cdi"), folder=folder / "domains", lane=lane)
            known, trusted = Latest(rack()), set(Settings().compute_domain_namespaces)
            async with DomainClaims(
                client=client,
                domains=Domains(client, NODE),
                record=record,
                files=files,
                inventory=lambda: known.value,
                namespaces=trusted,
                patience=120.0,
            ) as claims:
                yield World(server, folder, claims, record, known, trusted)
