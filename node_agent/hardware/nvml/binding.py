"""Tells NVIDIA's binding from the packages that install a module of the same name.

A look-alike would only fail later, and in the middle of something, so it is refused where the package is imported.
"""

from types import ModuleType

# What the agent calls and the look-alikes, and versions of the binding that are too old, do not have.
_NEEDED = (
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlMemory_v2",
    "nvmlEventMigConfigChange",
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
)


def refuse_look_alike(module: ModuleType) -> None:
    """Raise ImportError unless ``module`` is NVIDIA's own: one file, not a package, that knows MIG and new drivers."""
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing or hasattr(module, "__path__"):
        raise ImportError(
            f"the Python module pynvml in {module.__file__} is not NVIDIA's, or too old"
            f"{f' (it lacks {missing[0]})' if missing else ''}: uninstall the packages pynvml and nvidia-ml-py3,"
            " then install nvidia-ml-py 13.580 or later",
            name="pynvml",
            path=module.__file__,
        )
