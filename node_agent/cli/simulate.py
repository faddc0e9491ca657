"""``node-agent simulate``: break a simulated node from outside, and mend it again."""

from pathlib import Path
from typing import Any

import click

from node_agent.cli.shared import simulation_socket

gpu_option = click.option("--gpu", required=True, help="The GPU, by index, UUID or name (gpu-<minor>).")


@click.group()
def simulate() -> None:
    """Inject faults into a simulated node (`run --simulate`, `demo --hold`)."""


@simulate.command()
@simulation_socket
@gpu_option
@click.option("--code", type=int, required=True, help="The Xid, such as 79.")
@click.option(
    "--recovery/--no-recovery", default=True, show_default=True, help="The driver asks for what it asks for after it."
)
@click.option("--instance", type=int, help="The GPU instance that it is confined to.")
@click.option("--compute-instance", type=int, help="The compute instance of that.")
def xid(socket: Path, **event: str | int | bool | None) -> None:
    """Report an Xid from a GPU; `restore-gpu` is the recovery that the driver then asks for."""
    _send(socket, command="xid", **event)


@simulate.command("recovery-action")
@simulation_socket
@gpu_option
@click.argument("action")
def recovery_action(socket: Path, gpu: str, action: str) -> None:
    """Let the driver ask for a recovery, such as gpu-reset or node-reboot, or for none."""
    _send(socket, command="recovery-action", gpu=gpu, action=action)


@simulate.command()
@simulation_socket
@gpu_option
@click.argument("kind", type=click.Choice(["corrected", "uncorrected"]))
@click.option("--count", type=int, default=1, show_default=True, help="How many.")
def ecc(socket: Path, gpu: str, kind: str, count: int) -> None:
    """Count memory errors; `restore-gpu` is the reset that ends them."""
    _send(socket, command="ecc", gpu=gpu, kind=kind, count=count)


@simulate.command("remap-rows")
@simulation_socket
@gpu_option
@click.option("--pending/--no-pending", default=None, help="A row waits to be remapped.")
@click.option("--failure/--no-failure", default=None, help="A row could not be remapped.")
def remap_rows(socket: Path, gpu: str, pending: bool | None, failure: bool | None) -> None:
    """Set what has become of the memory rows of a GPU (Ampere and later)."""
    _send(socket, command="remap-rows", gpu=gpu, pending=pending, failure=failure)


@simulate.command("retire-pages")
@simulation_socket
@gpu_option
@click.argument("cause", type=click.Choice(["single-bit", "double-bit"]))
@click.option("--count", type=int, default=1, show_default=True, help="How many.")
@click.option("--pending/--no-pending", default=True, show_default=True, help="They wait for the next reset.")
def retire_pages(socket: Path, gpu: str, cause: str, count: int, pending: bool) -> None:
    """Retire memory pages (Volta, Turing)."""
    pages = [number << 16 for number in range(count)]
    _send(socket, command="retire-pages", gpu=gpu, cause=cause, addresses=pages, pending=pending)


@simulate.command()
@simulation_socket
@gpu_option
@click.option("--link", required=True, type=int, help="The number of the link.")
@click.option("--xid", "with_xid", is_flag=True, help="The driver reports it as well.")
@click.argument("state", type=click.Choice(["up", "down"]))
def nvlink(socket: Path, gpu: str, link: int, with_xid: bool, state: str) -> None:
    """Take an NVLink down, or bring it up again, at both ends."""
    _send(socket, command="link", gpu=gpu, link=link, up=state == "up", xid=with_xid)


@simulate.command()
@simulation_socket
@click.option("--gpu", help="As this GPU sees it; without it as all do.")
@click.option("--state", help="Such as in-progress or completed.")
@click.option("--status", help="What joining came to: an NVML error by name, or SUCCESS.")
@click.option("--summary", help="Such as healthy or unhealthy.")
@click.option("--health-mask", type=int, help="NVML's mask of what is wrong.")
def fabric(socket: Path, **changes: str | int | None) -> None:
    """Set the state of the NVLink fabric."""
    _send(socket, command="fabric", **changes)


@simulate.command()
@simulation_socket
@gpu_option
@click.option("--generation", type=int, help="No better than this generation.")
@click.option("--width", type=int, help="No more than so many lanes.")
def pcie(socket: Path, gpu: str, generation: int | None, width: int | None) -> None:
    """Hold the PCIe link of a GPU down; without options it runs at its best again."""
    _send(socket, command="pcie", gpu=gpu, generation=generation, width=width)


@simulate.command("slow-down")
@simulation_socket
@gpu_option
@click.argument("reasons", nargs=-1)
def slow_down(socket: Path, gpu: str, reasons: tuple[str, ...]) -> None:
    """Slow a GPU down for these reasons, such as hw-thermal-slowdown; without any it runs free again."""
    _send(socket, command="slow-down", gpu=gpu, reasons=reasons)


@simulate.command()
@simulation_socket
@gpu_option
@click.argument("load", type=click.FloatRange(0, 1))
def load(socket: Path, gpu: str, load: float) -> None:
    """Set how busy a GPU is, from 0 to 1."""
    _send(socket, command="load", gpu=gpu, load=load)


@simulate.command("lose-gpu")
@simulation_socket
@gpu_option
@click.option("--xid", "with_xid", is_flag=True, help="The driver reports Xid 79 as well; often it does not.")
def lose_gpu(socket: Path, gpu: str, with_xid: bool) -> None:
    """Let a GPU fall off the bus."""
    _send(socket, command="lose-gpu", gpu=gpu, xid=with_xid)


@simulate.command("restore-gpu")
@simulation_socket
@gpu_option
def restore_gpu(socket: Path, gpu: str) -> None:
    """Mend a GPU: it answers again, and the driver asks for no recovery."""
    _send(socket, command="restore-gpu", gpu=gpu)


@simulate.command("unplug-gpu")
@simulation_socket
@gpu_option
def unplug_gpu(socket: Path, gpu: str) -> None:
    """Take a GPU out of the node."""
    _send(socket, command="unplug-gpu", gpu=gpu)


@simulate.command("plug-gpu")
@simulation_socket
@gpu_option
def plug_gpu(socket: Path, gpu: str) -> None:
    """Put a GPU back that was taken out."""
    _send(socket, command="plug-gpu", gpu=gpu)


@simulate.command("cut-gpu")
@simulation_socket
@gpu_option
@click.option("--off", is_flag=True, help="Turn MIG off.")
@click.argument("parts", nargs=-1)
def cut_gpu(socket: Path, gpu: str, off: bool, parts: tuple[str, ...]) -> None:
    """Cut a GPU by MIG into PARTS, such as 1g.18gb@0, as another program would."""
    _send(socket, command="cut-gpu", gpu=gpu, parts=list(parts), enabled=not off)


@simulate.command()
@simulation_socket
@click.option("--call", required=True, help="The C function, such as nvmlDeviceGetTemperature.")
@click.option("--code", required=True, help="The NVML error, by number or name, such as GPU_IS_LOST.")
@click.option("--gpu", help="Only on this GPU.")
@click.option("--times", type=int, help="So often; without it until `clear`.")
def fail(socket: Path, call: str, code: str, gpu: str | None, times: int | None) -> None:
    """Let a call of NVML fail."""
    _send(socket, command="fail", call=call, code=int(code) if code.isdigit() else code, gpu=gpu, times=times)


@simulate.command()
@simulation_socket
@click.option("--call", required=True, help="The C function, such as nvmlDeviceGetCount_v2.")
@click.option("--seconds", type=float, required=True, help="How long each call takes.")
@click.option("--gpu", help="Only on this GPU.")
def hang(socket: Path, call: str, seconds: float, gpu: str | None) -> None:
    """Let a call of NVML hang."""
    _send(socket, command="hang", call=call, seconds=seconds, gpu=gpu)


@simulate.command()
@simulation_socket
@click.argument("state", type=click.Choice(["loaded", "not-loaded", "version-mismatch"]))
def driver(socket: Path, state: str) -> None:
    """Unload the driver, load it again, or let library and driver not fit together."""
    _send(socket, command="driver", state=state)


@simulate.command()
@simulation_socket
def clear(socket: Path) -> None:
    """Take back all failing and hanging calls."""
    _send(socket, command="clear")


def _send(socket: Path, **request: Any) -> None:
    from node_agent.hardware.simulated.control import send

    send(socket, {key: value for key, value in request.items() if value is not None})
