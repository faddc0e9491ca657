"""Serves the health of the GPUs over gRPC on a Unix socket, for tools on the node: the whole document by
``HealthWatcher`` (``protos/health_v1.proto``), and a yes or no for each GPU by gRPC's own health checking protocol.

There the empty name stands for the agent itself, which serves while it is ready; other names are those and the UUIDs
of GPUs, which serve while they are in service.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from node_agent.kubelet.server import serving
from node_agent.reporting.health import CauseStatus, GpuHealth, HealthDocument, MissingStatus, found, not_found
from node_agent.reporting.health_view import HealthView
from node_agent.wire import grpc_health_v1_pb2 as check
from node_agent.wire import grpc_health_v1_pb2_grpc as check_rpc
from node_agent.wire import health_v1_pb2 as wire
from node_agent.wire import health_v1_pb2_grpc as rpc

# No call is worth waiting for at the end: those that watch would never end by themselves.
GRACE_SECONDS = 0.1

SEVERITIES = {
    "healthy": wire.HEALTHY,
    "degraded": wire.DEGRADED,
    "withdrawn": wire.WITHDRAWN,
    "evicted": wire.EVICTED,
}
Serving = check.HealthCheckResponse.ServingStatus


class HealthServer:
    """A service: answers on ``socket`` from ``view``; ``ready`` says whether the agent can do its work."""

    def __init__(self, view: HealthView, ready: Callable[[], bool], socket: Path) -> None:
        self._view = view
        self._ready = ready
        self._socket = socket

    async def run(self) -> None:
        """Serve until cancelled. Raises KubeletError where nobody can serve there."""
        async with serving(self._socket, self._add_services, GRACE_SECONDS):
            await asyncio.Event().wait()

    def _add_services(self, server: aio.Server) -> None:
        rpc.add_HealthWatcherServicer_to_server(WatcherServicer(self._view), server)
        check_rpc.add_HealthServicer_to_server(CheckServicer(self._view, self._ready), server)


class WatcherServicer(rpc.HealthWatcherServicer):
    """``gpu.nvidia.com.health.v1.HealthWatcher``."""

    def __init__(self, view: HealthView) -> None:
        self._view = view

    async def Get(self, request: wire.GetRequest, context: Any) -> wire.HealthReport:
        return report(self._view.document)

    async def Watch(self, request: wire.WatchRequest, context: Any) -> AsyncIterator[wire.HealthReport]:
        async with aclosing(self._view.watch()) as documents:
            async for document in documents:
                yield report(document)


class CheckServicer(check_rpc.HealthServicer):
    """``grpc.health.v1.Health``."""

    def __init__(self, view: HealthView, ready: Callable[[], bool]) -> None:
        self._view = view
        self._ready = ready

    async def Check(self, request: check.HealthCheckRequest, context: Any) -> check.HealthCheckResponse:
        document = self._view.document
        status = self._status(document, request.service)
        if status == Serving.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, not_found(document, request.service))
        return check.HealthCheckResponse(status=status)

    async def List(self, request: check.HealthListRequest, context: Any) -> check.HealthListResponse:
        document = self._view.document
        names = ["", *(name for gpu in document.gpus for name in (gpu.name, gpu.uuid))]
        statuses = {name: check.HealthCheckResponse(status=self._status(document, name)) for name in names}
        return check.HealthListResponse(statuses=statuses)

    async def Watch(self, request: check.HealthCheckRequest, context: Any) -> AsyncIterator[check.HealthCheckResponse]:
        said = None
        async with aclosing(self._view.watch()) as documents:
            async for document in documents:
                status = self._status(document, request.service)
                if status != said:
                    said = status
                    yield check.HealthCheckResponse(status=status)

    def _status(self, document: HealthDocument, service: str) -> check.HealthCheckResponse.ServingStatus:
        if not service:
            return Serving.SERVING if self._ready() else Serving.NOT_SERVING
        gpu = found(document, service)
        if gpu is None:
            return Serving.SERVICE_UNKNOWN
        return Serving.SERVING if gpu.in_service else Serving.NOT_SERVING


def report(document: HealthDocument) -> wire.HealthReport:
    """The document as it goes over the wire."""
    return wire.HealthReport(
        node=document.node,
        gpus=map(_gpu, document.gpus),
        missing=map(_missing, document.missing),
        trouble=document.trouble or "",
    )


def _gpu(gpu: GpuHealth) -> wire.Gpu:
    return wire.Gpu(
        name=gpu.name,
        uuid=gpu.uuid,
        severity=SEVERITIES[gpu.health],
        gone=not gpu.present,
        causes=map(_cause, gpu.causes),
        xids={int(code): count for code, count in gpu.xids.items()},
    )


def _cause(cause: CauseStatus) -> wire.Cause:
    return wire.Cause(
        reason=cause.reason,
        severity=SEVERITIES[cause.severity],
        message=cause.message,
        clears=cause.clears,
        since=cause.since,
        code=cause.code,
        instance=cause.instance or "",
        peers=cause.peers,
    )


def _missing(missing: MissingStatus) -> wire.MissingGpu:
    return wire.MissingGpu(index=missing.index, reason=missing.reason, uuid=missing.uuid or "")
