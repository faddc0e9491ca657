"""What strangers may send, and what they may see.

Any bytes over the kubelet's sockets, anything in a claim of one's own, the modes of what the agent makes, and secrets
that it has to know. A claim's owner can at worst fail that claim: NVIDIA's driver could be crash-looped by one empty
section. `make fuzz` draws more.
"""

import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from grpc import aio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.api_server import ApiServer
from tests.fakes.names import GPU_RESOURCE
from tests.faults.claims import Cluster
from tests.faults.conftest import Simulate, until

T = TypeVar("T")

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))
SECRET = "eyJhbGciOi-this-is-a-secret"
PAGES = ["/", "/status", "/overview", "/readyz?verbose", "/healthz", "/health", "/metrics"]
VERSION = "resource.nvidia.com/v1beta1"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
STEERING = ["../../etc/passwd", "LD_PRELOAD=/tmp/x", "0=1Gi;1=2Gi", "\n", "\0", "$(reboot)", "a" * 5000, "-1", "1e999"]
SHARING = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["MPS", "TimeSlicing", "None", ""]) | JSON,
        "timeSlicingConfig": st.fixed_dictionaries({}, optional={"interval": st.sampled_from(STEERING) | JSON}) | JSON,
        "mpsConfig": st.fixed_dictionaries(
            {},
            optional={
                "defaultActiveThreadPercentage": st.integers() | JSON,
                "defaultPinnedDeviceMemoryLimit": st.sampled_from(["1Gi", "0", *STEERING]) | JSON,
                "defaultPerDevicePinnedMemoryLimit": st.dictionaries(st.sampled_from(["0", *STEERING]), st.text()),
                "multiUser": st.booleans() | JSON,
            },
        )
        | JSON,
    },
)
PARAMETERS = st.fixed_dictionaries(
    {
        "apiVersion": st.just(VERSION) | JSON,
        "kind": st.sampled_from(["GpuConfig", "MigDeviceConfig", "VfioDeviceConfig", ""]) | JSON,
    },
    optional={
        "sharing": SHARING | JSON,
        "iommu": JSON,
    },
)
CALLS = [
    "/v1beta1.DevicePlugin/Allocate",
    "/v1beta1.DevicePlugin/GetPreferredAllocation",
    "/v1beta1.DevicePlugin/GetDevicePluginOptions",
    "/v1beta1.DevicePlugin/Nothing",
]
OF_CLAIMS = [
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
]


@pytest.fixture
async def l4(simulate: Simulate) -> AsyncIterator[Cluster]:
    """Two L4 in a cluster."""
    async with ApiServer() as server:
        yield Cluster(simulate("l4-2"), server)


async def send(socket: Path | str, path: str, message: bytes) -> object:
    """The status of a call with these bytes for a message; None where it was answered."""
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            await channel.unary_unary(path, request_serializer=bytes)(message, timeout=20)
        except aio.AioRpcError as error:
            return error.code()
    return None


def drawn(strategy: st.SearchStrategy[T]) -> list[T]:
    """What hypothesis draws, before any agent runs: it takes offence at whoever uses chance beside it."""
    found: list[T] = []

    @settings(max_examples=EXAMPLES, database=None)
    @given(strategy)
    def note(one: T) -> None:
        found.append(one)

    note()
    return found


async def test_no_bytes_over_the_kubelets_sockets_do_more_than_get_an_error(l4: Cluster) -> None:
    messages = drawn(st.tuples(st.sampled_from([*CALLS, *OF_CLAIMS]), st.binary(max_size=200)))
    async with l4.serving(2) as agent:
        await l4.place.allocatable(2)
        plugin, driver = l4.place.view.endpoint, l4.sockets[-1]
        for path, message in messages:
            await send(driver if path in OF_CLAIMS else plugin, path, message)
        assert agent.ledger.grants.value == {}
        await l4.place.kubelet.admit("pod", GPU_RESOURCE, 2)


async def test_whatever_a_claim_says_it_gets_its_own_gpu_or_nothing(l4: Cluster) -> None:
    """No path, variable, mount or device of a container comes from a claim's words, and no other claim is harmed."""
    written: list[dict[str, Any]] = [{"apiVersion": VERSION, "kind": "GpuConfig"}, *drawn(PARAMETERS)]
    async with l4.serving(2) as agent:
        device, other = l4.device_of(0), l4.device_of(1)
        plain = l4.allocate("plain", device)
        await l4.prepared(plain)
        usual = edits(l4.spec_of(plain))
        await l4.unprepare(plain)

        for parameters in written:
            claim = l4.allocate("hostile", device, parameters=parameters)
            answer = (await l4.prepare(claim))["hostile"]
            assert bool(answer.error) != bool(answer.devices)
            if answer.devices:
                assert edits(l4.spec_of(claim)) == usual
            assert await l4.unprepare(claim) == {"hostile": ""}
            l4.forget(claim)
            assert agent.ledger.grants.value == {}
            assert not l4.spec_of(claim).exists()

        assert await l4.prepared(l4.allocate("beside", other)) == [other]


def edits(spec: Path) -> dict[str, Any]:
    """What a spec does to a container, with nothing of the claim's own name."""
    found = json.loads(spec.read_text())
    return {"all": found.get("containerEdits"), "devices": [one["containerEdits"] for one in found["devices"]]}


async def test_sockets_and_state_are_closed_to_others_and_specs_are_open_to_every_runtime(l4: Cluster) -> None:
    async with l4.serving(2):
        claim = l4.allocate("claim", l4.device_of(0))
        await l4.prepared(claim)
        await l4.place.allocatable(1)
        paths = l4.settings.paths
        for folder in (paths.run_dir, paths.state_dir):
            assert mode(folder) == 0o750
            assert [one for one in folder.rglob("*") if mode(one) & 0o002] == []
            assert [one for one in folder.iterdir() if one.is_socket() and mode(one) not in (0o600, 0o660)] == []
        kubelets = [one for one in paths.kubelet_dir.rglob("*") if one.is_socket() and "node-agent" in one.name]
        driver = [*l4.sockets, *(paths.kubelet_dir / "plugins_registry").iterdir()]
        assert kubelets
        # The kubelet is root, as the agent is.
        assert {mode(one) for one in (*kubelets, *driver)} == {0o600}
        assert mode(l4.books) == 0o600
        assert mode(paths.cdi_dir) == 0o755
        assert {mode(one) for one in paths.cdi_dir.iterdir()} == {0o644}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_token_is_in_no_log_and_on_no_page(l4: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="node_agent")
    settings = l4.settings
    file = l4.place.folder / "kubeconfig"
    file.write_text(file.read_text().replace('"any"', f'"{SECRET}"'))
    async with l4.place.kubelet.running(), l4.place.agent(settings):
        await until(lambda: len(l4.devices) == 2)
        assert l4.server.requests, "the token was used"
        l4.server.fail(3, verb="update", code=401)
        l4.place.node.faults.lose(1)
        await until(lambda: any("taints" in one for one in l4.devices.values()))
        pages = [(await l4.place.ask(path))[1] for path in PAGES]
    assert all(pages)
    assert not [path for path, page in zip(PAGES, pages, strict=True) if SECRET in page]
    assert SECRET not in caplog.text + str([record.__dict__ for record in caplog.records])
