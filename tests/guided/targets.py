"""What is fuzzed: what takes each kind of input from strangers, what it may raise, and good ones to begin with."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node_agent.allocation.checkpoint import VERSION, decode
from node_agent.config.resolve import Sources
from node_agent.dra.claims import claim_of
from node_agent.dra.configs import config_for
from node_agent.errors import CheckpointDamaged, ClaimConfigInvalid, ClaimUnreadable, ConfigError
from node_agent.health import record
from node_agent.kit.http import Limits, Request, Response, serving
from node_agent.kit.sealed import seal
from node_agent.model.device import DeviceKind
from node_agent.partition.configs import parse


@dataclass(frozen=True, kw_only=True)
class Target:
    """``take`` is given any bytes, and may raise what is ``expected``; ``seeds`` are good ones to begin with."""

    take: Callable[[bytes], object]
    expected: tuple[type[Exception], ...]
    seeds: Sequence[bytes]


def take_claim(data: bytes) -> None:
    """A ResourceClaim with its opaque configurations, as any user may write it."""
    document = msgspec.json.decode(data)
    if not isinstance(document, dict):
        return
    claim = claim_of(document)
    for result in claim.results or ():
        for kind in DeviceKind:
            with suppress(ClaimConfigInvalid):
                config_for(result, kind, claim.configs)


def take_checkpoint(data: bytes) -> None:
    """The ledger's file, as it is found; and one whose checksum is right, whatever it says."""
    with suppress(CheckpointDamaged):
        decode(data)
    decode(seal(data, VERSION))


def take_configuration(data: bytes) -> None:
    """An entry of a ConfigMap."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(data)
        file.flush()
        Sources(file=Path(file.name)).resolve()


def take_requests(data: bytes) -> None:
    """What comes over a connection to the port that is scraped."""
    answer = asyncio.run(_answered(data))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
    assert not answer.startswith(b"HTTP/1.1 5") or answer[9:12] in (b"501", b"505"), answer


async def _answered(data: bytes) -> bytes:
    async def route(request: Request) -> Response:
        return Response(body=request.query.encode())

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, "s")
        async with serving({"/": route, "POST /clear": route}, path, Limits(request_bytes=1024)):
            reader, writer = await asyncio.open_unix_connection(path)
            with suppress(OSError):
                writer.write(data)
                writer.write_eof()
            answer = b""
            with suppress(OSError):
                answer = await reader.read()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    assert not failures, failures
    return answer


def take_health(data: bytes) -> None:
    """The file of open causes; and one whose checksum is right."""
    with suppress(ValueError):
        record.decode(data)
    record.decode(seal(data, record.VERSION))


CLAIM = b"""{"metadata": {"uid": "u", "namespace": "n", "name": "c",
"annotations": {"resource.kubernetes.io/pod-claim-name": "gpus"}}, "status": {"allocation": {"devices": {
"results": [{"request": "gpus/a", "driver": "gpu.nvidia.com", "pool": "p", "device": "gpu-0", "shareID": "s",
"consumedCapacity": {"memory": "20Gi"}}],
"config": [{"source": "FromClaim", "requests": ["gpus"], "opaque": {"driver": "gpu.nvidia.com", "parameters": {
"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS", "mpsConfig": {
"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "20Gi",
"defaultPerDevicePinnedMemoryLimit": {"0": "10Gi"}}}}}}]}}}}"""

LEDGER = b"""{"grants": [{"holder": {"door": "claim", "id": "u", "name": "n/c"}, "state": "prepared", "since": 1.5,
"holds": [{"device": "GPU-0", "gpus": ["GPU-0"], "share_id": "s", "consumed": {"memory": "20Gi"}}]}],
"unreconciled": ["claim"]}"""

CONFIGURATION = b"""version: v1
flags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}
resources: {gpus: [{pattern: "*", name: h200}]}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
agent:
  devices: {exclude: [0, gpu-1], shareable: ["*"]}
  sharing: {rules: [{strategy: mps, replicas: 4, devices: [3], memoryPerShare: 20Gi}]}
  health: {probeInterval: 5s, rules: [{xids: [13, 63], action: ignore}]}
  mig: {onDemand: ["*"], keepRoomFor: [1g.18gb]}
"""

LAYOUTS = b"""version: v1
mig-configs:
  mine:
    - {devices: [0, 1], device-filter: ["0x233510DE"], mig-enabled: true, mig-devices: {1g.18gb+me: 1, 3g.71gb: 1}}
    - {devices: all, mig-enabled: false}
"""

REQUEST = b"GET /?a=1 HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\nPOST /clear HTTP/1.1\r\nHost: x\r\n\r\n"

HEALTH = b"""{"gpus": [{"uuid": "GPU-0", "causes": [], "courses": [{"reason": "xid", "code": 79, "opened": [1.5]}],
"counts": {"79": 2}, "gone": 2.5}]}"""

TARGETS = {
    "claim": Target(take=take_claim, expected=(msgspec.DecodeError, ClaimUnreadable), seeds=[CLAIM]),
    "checkpoint": Target(take=take_checkpoint, expected=(CheckpointDamaged,), seeds=[LEDGER]),
    "configuration": Target(take=take_configuration, expected=(ConfigError,), seeds=[CONFIGURATION]),
    "layouts": Target(take=parse, expected=(ConfigError,), seeds=[LAYOUTS]),
    "requests": Target(take=take_requests, expected=(), seeds=[REQUEST]),
    "health": Target(take=take_health, expected=(ValueError,), seeds=[HEALTH]),
}
