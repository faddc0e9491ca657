"""The commands that a simulated node takes from outside its process: one for each thing that ``Faults`` can do.

``{"command": "xid", "gpu": "2", "code": 79}`` names a method and its parameters; they are read as strictly as the
method's annotations say. How commands travel is in ``control``.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from node_agent.errors import SimulationError
from node_agent.hardware.simulated.faults import Faults

# The names are those of the command line; a method may be shorter where Python says the rest.
COMMANDS: dict[str, Callable[..., None]] = {
    "clear": Faults.clear,
    "cut-gpu": Faults.cut,
    "driver": Faults.driver,
    "ecc": Faults.ecc,
    "fabric": Faults.fabric,
    "fail": Faults.fail,
    "hang": Faults.hang,
    "link": Faults.link,
    "link-errors": Faults.link_errors,
    "load": Faults.load,
    "lose-gpu": Faults.lose,
    "pcie": Faults.pcie,
    "plug-gpu": Faults.plug,
    "recovery-action": Faults.recovery_action,
    "remap-rows": Faults.remap_rows,
    "restore-gpu": Faults.restore,
    "retire-pages": Faults.retire_pages,
    "slow-down": Faults.slow_down,
    "start-process": Faults.start_process,
    "stop-process": Faults.stop_process,
    "unplug-gpu": Faults.unplug,
    "xid": Faults.xid,
}


def carry_out(faults: Faults, request: object) -> None:
    """Do what a decoded JSON object asks for; SimulationError says what is wrong with it and what would be right."""
    fields = dict(request) if isinstance(request, dict) else {}
    name = fields.pop("command", None)
    if name not in COMMANDS:
        raise SimulationError(f"no command is {name!r}; there are {', '.join(COMMANDS)}")
    shape = _SHAPES[name]
    try:
        arguments = msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name + ("" if field.required else "?") for field in msgspec.structs.fields(shape))
        raise SimulationError(f"{name}: {error}; its fields are {known or 'none'}") from error
    COMMANDS[name](faults, **msgspec.structs.asdict(arguments))


def _shape(name: str, method: Callable[..., None]) -> type[msgspec.Struct]:
    """A structure with the method's parameters as its fields."""
    hints = typing.get_type_hints(method, include_extras=True)
    fields: list[Any] = []
    # The first parameter is self.
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True, kw_only=True)


_SHAPES = {name: _shape(name, method) for name, method in COMMANDS.items()}
