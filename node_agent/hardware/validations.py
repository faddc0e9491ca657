"""What NVIDIA's GPU Operator says is ready on this node: a file for each, in a folder of the host; only read here."""

from pathlib import Path

from msgspec import Struct

from node_agent.errors import DriverUnavailable


class Validations(Struct, frozen=True, kw_only=True):
    """``wanted`` are the names of what is waited for, such as ``driver``, whose file is ``driver-ready``."""

    folder: Path = Path("/run/nvidia/validations")
    wanted: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise DriverUnavailable while one of them is not ready: the driver is left alone until then."""
        lacking = [path for path in (self.folder / f"{name}-ready" for name in self.wanted) if not path.exists()]
        if lacking:
            raise DriverUnavailable(
                f"the GPU Operator has not said yet that all is ready: {', '.join(map(str, lacking))} is not there;"
                " see its validator's pod on this node, or wait for nothing (agent.gpuOperator.waitFor)"
            )
