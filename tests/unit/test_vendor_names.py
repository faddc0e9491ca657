"""Nothing above ``hardware`` speaks of a vendor: names come from the vendor of the settings and of the inventory.

What may speak of one is listed here, each with why: what only one vendor has, and what is read of its configuration.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "node_agent"
VENDORS = ("nvidia", "nvml", "amd")

ABOVE = (
    "agent",
    "allocation",
    "cdi",
    "cli",
    "config",
    "deviceplugin",
    "doctor",
    "dra",
    "health",
    "kube",
    "kubelet",
    "layouts",
    "partition",
    "reporting",
    "sharing",
    "telemetry",
    "topology",
)
"""Every package above ``model`` and ``hardware`` but those of ``BY_NATURE``."""

BY_NATURE = {
    "computedomain": "ComputeDomains are NVIDIA's",
    "migrate": "reads the configuration of NVIDIA's charts",
    "wire": "generated; has no names of vendors",
}

MAY = {
    "agent/layouts.py": "knows the pods of NVIDIA's MIG manager, which cuts the same GPUs",
    "agent/mps.py": "starts NVIDIA's MPS daemon",
    "agent/reload.py": "names keys of NVIDIA's configuration file",
    "agent/time_slices.py": "looks for nvidia-smi, which sets time slices",
    "cdi/build.py": "the variables that NVIDIA's container runtime heeds",
    "cdi/capabilities.py": "device nodes of MIG",
    "cdi/catalogue.py": "what NVIDIA's driver installs",
    "cdi/files.py": "firmware of NVIDIA's driver",
    "cdi/hooks.py": "the programs of NVIDIA's container toolkit",
    "cdi/host.py": "what of a host containers need, by vendor",
    "cdi/imex.py": "device nodes of IMEX",
    "cdi/nodes.py": "device nodes of NVIDIA's driver",
    "cli/simulate.py": "faults are NVML's",
    "cli/simulated.py": "the keys of simulated nodes, by vendor",
    "cli/topology.py": "compares with nvidia-smi",
    "config/file.py": "NVIDIA's configuration file, and the words for vendors",
    "config/named.py": "the label of NVIDIA's config manager",
    "config/notices.py": "keys of NVIDIA's configuration file",
    "config/settings.py": "the folder of NVIDIA's GPU Operator",
    "config/sources.py": "variables of NVIDIA's device plugin",
    "deviceplugin/answer.py": "the variables and mounts that NVIDIA's container runtime heeds",
    "doctor/amd.py": "the driver of AMD's GPUs",
    "doctor/driver.py": "the driver of NVIDIA's GPUs",
    "doctor/gpus.py": "how NVIDIA's GPUs are mended",
    "doctor/neighbours.py": "marks that other schedulers put on the nodes of NVIDIA's GPUs",
    "doctor/owners.py": "the vendors' programs that do the same",
    "dra/attribute_names.py": "a page for people",
    "dra/configs.py": "NVIDIA's opaque configuration of claims",
    "dra/mig_cutter.py": "how a MIG device of somebody else is removed",
    "layouts/changes.py": "how a GPU that waits for MIG is reset",
    "layouts/orders.py": "the labels of NVIDIA's MIG manager",
    "partition/names.py": "names of MIG resources",
    "reporting/label_names.py": "a page for people",
    "reporting/label_writer.py": "the time stamp of GPU Feature Discovery",
    "reporting/metrics/devices.py": "a label of DCGM's",
    "sharing/mps/control.py": "NVIDIA's MPS daemon",
    "sharing/mps/plan.py": "NVIDIA's MPS daemon",
    "sharing/mps/processes.py": "NVIDIA's MPS daemon",
    "sharing/smi.py": "nvidia-smi, which sets time slices",
}


def literals(path: Path) -> Iterator[str]:
    """The texts of a module that mean something when it runs: all but its documentation."""
    tree = ast.parse(path.read_text())
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    bodies_of_async = (node.body for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    documented = {
        id(one.value)
        for body in (*bodies, *bodies_of_async)
        for one in body
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


def speaks(path: Path) -> set[str]:
    """The vendors that a module names when it runs."""
    words = [text.lower() for text in literals(path)]
    return {vendor for vendor in VENDORS for word in words if vendor in word}


def modules(package: str) -> list[Path]:
    return sorted((PACKAGE / package).rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_package_is_above_or_below_or_one_vendors_by_nature() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages == {*ABOVE, *BY_NATURE, "hardware", "model", "kit"}


@pytest.mark.parametrize("package", ABOVE)
def test_no_module_above_the_hardware_names_a_vendor_but_those_that_are_listed(package: str) -> None:
    assert {relative(path) for path in modules(package) if speaks(path)} - MAY.keys() == set()


@pytest.mark.parametrize("module", MAY)
def test_what_is_listed_is_there_and_names_a_vendor(module: str) -> None:
    assert speaks(PACKAGE / module)


COMMON = ("allocation", "health", "kubelet", "kube", "telemetry", "topology")


@pytest.mark.parametrize("package", COMMON)
def test_what_every_gpu_goes_through_has_no_exception(package: str) -> None:
    assert [module for module in MAY if module.startswith(f"{package}/")] == []


def test_a_name_in_the_code_is_found_and_one_in_its_documentation_is_not(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Of NVIDIA."""\n\nNAME = "x"\n"""As NVIDIA."""\n')
    assert speaks(path) == set()
    path.write_text('async def call() -> str:\n    """NVIDIA."""\n    return f"{call}.NVIDIA.com"\n')
    assert speaks(path) == {"nvidia"}
