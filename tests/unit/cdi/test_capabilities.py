"""Which device nodes a container needs to use a partition follows from the kernel's files of its instances."""

from pathlib import Path

import pytest

from node_agent.cdi.capabilities import capability_nodes
from node_agent.cdi.edits import DeviceNode
from node_agent.cdi.roots import DriverRoots
from node_agent.errors import CdiError
from tests.fakes.builders import gpu, partition
from tests.unit.cdi.installation import Capabilities

GPU = gpu(3)
PARTITION = partition(GPU, "1g.18gb", number=9)


@pytest.fixture
def shown(tmp_path: Path) -> Capabilities:
    shown = Capabilities(tmp_path / "proc", major=238)
    shown.add(3, 9, minor=486)
    return shown


def test_a_partition_needs_the_nodes_of_its_gpu_instance_and_of_its_compute_instance(shown: Capabilities) -> None:
    roots = DriverRoots(proc=shown.proc)
    assert capability_nodes(roots, GPU, PARTITION) == tuple(
        DeviceNode(
            path=f"/dev/nvidia-caps/nvidia-cap{minor}",
            type="c",
            major=238,
            minor=minor,
            file_mode=0o444,
            permissions="rwm",
        )
        for minor in (486, 487)
    )


def test_nodes_of_a_driver_container_say_where_the_host_has_them(shown: Capabilities) -> None:
    roots = DriverRoots(proc=shown.proc, host_dev=Path("/run/nvidia/driver"))
    assert capability_nodes(roots, GPU, PARTITION)[0].host_path == ("/run/nvidia/driver/dev/nvidia-caps/nvidia-cap486")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("gi9/access", None, "gi9/access cannot be read: No such file"),
        ("gi9/ci0/access", None, "ci0/access cannot be read: No such file"),
        ("gi9/ci0/access", "DeviceFileMode: 292\n", "ci0/access does not say DeviceFileMinor"),
        ("../../../../../devices", "Character devices:\n195 nvidia\n", "devices does not say .* nvidia-caps"),
    ],
)
def test_a_partition_that_the_kernel_does_not_show_is_refused_with_the_file(
    shown: Capabilities, file: str, content: str | None, complaint: str
) -> None:
    path = shown.proc / "driver/nvidia/capabilities/gpu3/mig" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CdiError, match=complaint):
        capability_nodes(DriverRoots(proc=shown.proc), GPU, PARTITION)
