"""The kubelet's DRA calls, in both versions of the service: protobuf in, protobuf out, nothing decided here."""

from collections.abc import Iterable
from typing import Any

from node_agent.dra.operations import Answer, ClaimRef, Operations, PreparedDevice
from node_agent.errors import NodeAgentError
from node_agent.model.claim import ClaimUid
from node_agent.wire import dra_v1_pb2 as v1
from node_agent.wire import dra_v1_pb2_grpc as v1_rpc
from node_agent.wire import dra_v1beta1_pb2 as v1beta1
from node_agent.wire import dra_v1beta1_pb2_grpc as v1beta1_rpc


class ServicerV1(v1_rpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1``."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def NodePrepareResources(
        self, request: v1.NodePrepareResourcesRequest, context: Any
    ) -> v1.NodePrepareResourcesResponse:
        answers = await self._operations.prepare(_refs(request.claims))
        return v1.NodePrepareResourcesResponse(claims={uid: _prepared(answer) for uid, answer in answers.items()})

    async def NodeUnprepareResources(
        self, request: v1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1.NodeUnprepareResourcesResponse:
        answers = await self._operations.unprepare(_refs(request.claims))
        return v1.NodeUnprepareResourcesResponse(
            claims={uid: v1.NodeUnprepareResourceResponse(error=_error(answer)) for uid, answer in answers.items()}
        )


class ServicerV1Beta1(v1beta1_rpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1beta1``, for kubelets before v1: the same without share ids."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    async def NodePrepareResources(
        self, request: v1beta1.NodePrepareResourcesRequest, context: Any
    ) -> v1beta1.NodePrepareResourcesResponse:
        answers = await self._operations.prepare(_refs(request.claims))
        return v1beta1.NodePrepareResourcesResponse(
            claims={uid: _prepared_before_v1(answer) for uid, answer in answers.items()}
        )

    async def NodeUnprepareResources(
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: Any
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        answers = await self._operations.unprepare(_refs(request.claims))
        return v1beta1.NodeUnprepareResourcesResponse(
            claims={uid: v1beta1.NodeUnprepareResourceResponse(error=_error(answer)) for uid, answer in answers.items()}
        )


def _refs(claims: Iterable[v1.Claim] | Iterable[v1beta1.Claim]) -> list[ClaimRef]:
    return [ClaimRef(uid=ClaimUid(claim.uid), namespace=claim.namespace, name=claim.name) for claim in claims]


def _prepared(answer: Answer) -> v1.NodePrepareResourceResponse:
    if isinstance(answer, NodeAgentError):
        return v1.NodePrepareResourceResponse(error=_error(answer))
    return v1.NodePrepareResourceResponse(devices=[_device(device) for device in answer])


def _device(device: PreparedDevice) -> v1.Device:
    return v1.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _prepared_before_v1(answer: Answer) -> v1beta1.NodePrepareResourceResponse:
    if isinstance(answer, NodeAgentError):
        return v1beta1.NodePrepareResourceResponse(error=_error(answer))
    devices = [
        v1beta1.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
        )
        for device in answer
    ]
    return v1beta1.NodePrepareResourceResponse(devices=devices)


def _error(answer: Answer) -> str:
    """The error in words; the kubelet takes an empty one for success."""
    return (str(answer) or type(answer).__name__) if isinstance(answer, NodeAgentError) else ""
