"""Packages that install another module named pynvml."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pynvml
import pytest

from node_agent.errors import DriverUnavailable
from node_agent.hardware.nvml.binding import refuse_look_alike


def look_alike(*names: str, package: bool = False) -> ModuleType:
    module = ModuleType("pynvml")
    module.__file__ = "/site-packages/pynvml.py"
    vars(module).update({name: getattr(pynvml, name) for name in names})
    if package:
        module.__path__ = ["/site-packages/pynvml"]
    return module


def test_nvidias_own_binding_is_taken() -> None:
    refuse_look_alike(pynvml)


def test_a_binding_without_mig_is_refused_and_the_message_says_what_to_install() -> None:
    with pytest.raises(
        DriverUnavailable, match=r"/site-packages/pynvml\.py .* lacks .*: uninstall .* install nvidia-ml-py"
    ):
        refuse_look_alike(look_alike("nvmlInit", "nvmlDeviceGetName"))


def test_a_package_is_refused_even_where_it_has_every_name() -> None:
    names = [name for name in vars(pynvml) if not name.startswith("__")]
    refuse_look_alike(look_alike(*names))
    with pytest.raises(DriverUnavailable, match="is not NVIDIA's"):
        refuse_look_alike(look_alike(*names, package=True))


def test_the_agent_does_not_start_on_a_look_alike(tmp_path: Path) -> None:
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml/__init__.py").write_text("def nvmlInit(): ...\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import node_agent.hardware.nvml"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "install nvidia-ml-py" in done.stderr.splitlines()[-1]
