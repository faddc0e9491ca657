"""A gRPC server that answers each call of the device plugin API with a message that it was given.

``python -m benchmarks.parrot SOCKET ANSWER`` serves until it is told to end; ``ANSWER`` is that to Allocate, in
hexadecimal digits. ``floors.parrot`` is the same in the process of the benchmark.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc

from node_agent.kubelet.server import serving
from node_agent.wire import deviceplugin_v1beta1_pb2 as wire

Answer = TypeVar("Answer", wire.AllocateResponse, wire.PreferredAllocationResponse)


def service(allocation: wire.AllocateResponse, preference: wire.PreferredAllocationResponse) -> Any:
    """What a gRPC server is given to answer Allocate and GetPreferredAllocation."""
    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Allocate": grpc.unary_unary_rpc_method_handler(
            _always(allocation),
            request_deserializer=wire.AllocateRequest.FromString,
            response_serializer=wire.AllocateResponse.SerializeToString,
        ),
        "GetPreferredAllocation": grpc.unary_unary_rpc_method_handler(
            _always(preference),
            request_deserializer=wire.PreferredAllocationRequest.FromString,
            response_serializer=wire.PreferredAllocationResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", calls)


def _always(answer: Answer) -> Callable[[Any, Any], Awaitable[Answer]]:
    async def call(request: Any, context: Any) -> Answer:
        return answer

    return call


async def serve(socket: Path, allocation: wire.AllocateResponse) -> None:
    prepared = service(allocation, wire.PreferredAllocationResponse())
    async with serving(socket, lambda server: server.add_generic_rpc_handlers((prepared,))):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), wire.AllocateResponse.FromString(bytes.fromhex(sys.argv[2]))))
