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
def xid(socket: Path, gpu: str, code: int, recovery: bool) -> None:
    """Report an Xid from a GPU; `restore-gpu` is the recovery that the driver then asks for."""
    _send(socket, command="xid", gpu=gpu, code=code, recovery=recovery)


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
