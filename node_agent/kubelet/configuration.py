"""What the kubelet's configuration file says of how it aligns devices, CPUs and memory."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from node_agent.errors import ConfigError


class Alignment(Struct, frozen=True, kw_only=True):
    """The policy and scope of the kubelet's topology manager, and the policy's options; the defaults are its own."""

    policy: str = "none"
    scope: str = "container"
    options: Mapping[str, str] = field(default_factory=dict)


def alignment_in(file: Path) -> Alignment | None:
    """What the file says; None where there is none.

    Raises:
        ConfigError: it is no configuration of a kubelet.
    """
    from node_agent.config.document import read  # noqa: PLC0415 - YAML costs memory, and most nodes do not need it

    try:
        found = read(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != "KubeletConfiguration":
        raise ConfigError(
            f"{file}: no KubeletConfiguration: name the kubelet's file in agent.nodeReports.kubeletConfig"
        )
    usual, options = Alignment(), found.get("topologyManagerPolicyOptions") or {}
    return Alignment(
        policy=found.get("topologyManagerPolicy") or usual.policy,
        scope=found.get("topologyManagerScope") or usual.scope,
        options={str(name): _word(value) for name, value in options.items()},
    )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
