"""Tells NVIDIA's binding from the packages that install a module of the same name.

A look-alike would only fail later, and in the middle of something, so it is refused where the package is imported.
"""

from types import ModuleType

from node_agent.errors import DriverUnavailable

# What the agent calls and the look-alikes, and versions of the binding that are too old, do not have.
_NEEDED = (
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlMemory_v2",
    "nvmlEventMigConfigChange",
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
)


def refuse_look_alike(module: ModuleType) -> None:
    """Raise DriverUnavailable unless ``module`` is NVIDIA's own: one file, not a package, new enough to know MIG."""
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing or hasattr(module, "__path__"):
        raise DriverUnavailable(
            f"the Python module pynvml in {module.__file__} is not NVIDIA's, or too old"
            f"{f' (it lacks {missing[0]})' if missing else ''}: uninstall the packages pynvml and nvidia-ml-py3,"
            " then install nvidia-ml-py 13.580 or later"
        )
