"""NVIDIA's catalogue of Xids as data: what each number means, how far the fault reaches, and what it costs by default.

Meanings and remedies are those of NVIDIA's Xid catalogue of October 2025; a few newer numbers are known from drivers
that report them. What a fault costs here is a default: the configuration may say otherwise for each number.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from node_agent.health.policy import Action, ClearedBy


class XidScope(StrEnum):
    """What a fault is about.

    APPLICATION: the work that met it, and nothing else. DEVICE: the GPU, or the MIG device that the driver names.
    LINKS: the NVLinks of the GPU; it works by itself. NODE: the GPU, and it takes a reboot, new software or hands at
    the machine to mend it; the node's other GPUs are not hit.
    """

    APPLICATION = "application"
    DEVICE = "device"
    LINKS = "links"
    NODE = "node"


class Xid(Struct, frozen=True, kw_only=True):
    """One number of the catalogue. ``name`` is its meaning in a few words."""

    code: int
    name: str
    scope: XidScope
    action: Action
    clears: ClearedBy


def xid(code: int) -> Xid:
    """What is known of a number; one that nobody has heard of may mean anything, so it takes the GPU out."""
    return catalogue.get(code) or _xid(code, "not in the catalogue", *_UNKNOWN)


_Treatment = tuple[XidScope, Action, ClearedBy]

_UNKNOWN: _Treatment = (XidScope.DEVICE, Action.WITHDRAW, ClearedBy.RECOVERY)

_CATALOGUE: Mapping[_Treatment, Mapping[int, str]] = {
    # The set that NVIDIA's device plugin leaves out. After 109 today's catalogue asks for a reset: where it is due,
    # the driver says so by its recovery action.
    (XidScope.APPLICATION, Action.IGNORE, ClearedBy.PROBE): {
        13: "exception in a graphics or compute engine",
        31: "page fault of the memory unit",
        43: "stopped processing after a fault of the application",
        45: "channels cleaned up after another fault, or the process was killed",
        68: "exception in a video decoder",
        109: "context switch timed out",
    },
    # Messages for tests.
    (XidScope.DEVICE, Action.IGNORE, ClearedBy.PROBE): {
        14: "fake error",
        106: "test message of the system management bus",
        107: "test message of the system management bus",
    },
    # The application is to be started again; the GPU goes on working. Many of them in a short time are another matter.
    (XidScope.APPLICATION, Action.COUNT, ClearedBy.PROBE): {
        8: "stopped processing: timed out",
        11: "bad push buffer",
        25: "bad push buffer",
        32: "corrupted push buffer",
        37: "firmware touched what it must not",
        38: "firmware touched what it must not",
        44: "fault in a context switch",
        60: "exception in the video processor",
        66: "driver touched what it must not",
        67: "driver touched what it must not",
        69: "error of a graphics engine class",
        80: "corrupted data sent to the GPU",
        108: "NVLink remote translation failed",
        137: "NVLink access without the privilege",
        141: "CUDA fast path failed",
        142: "exception in an NVENC engine",
        152: "deep-learning accelerator: memory fault",
        153: "deep-learning accelerator: timed out",
        174: "channels of a process killed",
    }
    | dict.fromkeys((39, 40, 41, *range(70, 73), *range(75, 78), 85, *range(126, 136)), "exception in a copy engine")
    | dict.fromkeys(
        (82, 83, 84, 86, 88, 89, *range(96, 106), 139), "exception in a video, JPEG or optical-flow engine"
    ),
    # News of the GPU that cost nothing: where something is due, a reading says what.
    (XidScope.DEVICE, Action.COUNT, ClearedBy.PROBE): {
        63: "memory row to be remapped, or page to be retired, at the next reset",
        93: "InfoROM is worn out",
        154: "recovery action has changed",
        160: "channel retired",
        162: "power smoothing engaged again",
        163: "power smoothing disengaged",
        164: "power smoothing: little of its life is left",
        165: "power smoothing: its life is over",
    },
    (XidScope.NODE, Action.COUNT, ClearedBy.PROBE): {
        78: "vGPU failed to start",
    },
    # Only the work on it was lost; the GPU serves on until the driver wants it reset.
    (XidScope.DEVICE, Action.DEGRADE, ClearedBy.RECOVERY): {
        94: "contained memory error",
        159: "error on the coherent interconnect",
    },
    # It goes on with less, which the driver tells of once and never again.
    (XidScope.DEVICE, Action.DEGRADE, ClearedBy.RESET): {
        92: "many single-bit memory errors",
        121: "error on the link to the CPU",
        157: "a unit could not be retired",
        161: "a channel could not be retired",
        168: "less memory than there should be",
    },
    (XidScope.NODE, Action.DEGRADE, ClearedBy.RECOVERY): {
        176: "many correctable PCIe errors",
    },
    (XidScope.DEVICE, Action.WITHDRAW, ClearedBy.RECOVERY): {
        46: "stopped processing",
        48: "double-bit memory error",
        62: "micro-controller for power halted",
        64: "memory row could not be remapped, or page not retired",
        95: "uncontained memory error",
        110: "security fault",
        119: "GSP does not answer",
        120: "GSP reports an error",
        140: "memory error that was not recovered from",
        143: "initialisation failed",
        156: "a unit is to be retired at the next reset",
        158: "fatal timeout",
        169: "security micro-controller halted",
        171: "uncorrectable error in device memory",
        172: "uncorrectable error in on-chip memory",
        175: "memory subsystem failed",
    },
    (XidScope.NODE, Action.WITHDRAW, ClearedBy.RECOVERY): {
        54: "auxiliary power is not connected",
        79: "fallen off the bus",
        151: "key rotation failed (confidential computing)",
        167: "fatal timeout on PCIe",
        173: "fatal failure of the link to the CPU",
    },
    (XidScope.LINKS, Action.WITHDRAW, ClearedBy.RECOVERY): {
        74: "NVLink error",
        136: "NVLink training failed",
        155: "NVLink error defined by software",
    },
    # Harmless and fatal ones have one number: the driver asks for a recovery after those that are not harmless.
    (XidScope.LINKS, Action.DEGRADE, ClearedBy.RECOVERY): {
        144: "NVLink 5 error: SAW unit",
        145: "NVLink 5 error: RLW unit",
        146: "NVLink 5 error: TLW unit",
        147: "NVLink 5 error: TREX unit",
        148: "NVLink 5 error: NVLPW_CTRL unit",
        149: "NVLink 5 error: NETIR unit",
        150: "NVLink 5 error: MSE unit",
        166: "NVLink traffic before its encryption was set up",
        170: "NVLink interrupt under confidential computing",
    },
}


def _xid(code: int, name: str, scope: XidScope, action: Action, clears: ClearedBy) -> Xid:
    return Xid(code=code, name=name, scope=scope, action=action, clears=clears)


catalogue: Mapping[int, Xid] = {
    code: _xid(code, name, *treatment)
    for treatment, names in _CATALOGUE.items()
    for code, name in sorted(names.items())
}
