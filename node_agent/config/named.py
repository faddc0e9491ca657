"""Named configurations: the entries of a mounted ConfigMap, of which the node's label chooses one.

The names, the variables and the order are those of NVIDIA's config manager: the label, then the default configuration,
then the fallback strategies. One thing differs: a name that is not there is refused, and whoever has a configuration
in force keeps it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from node_agent.errors import ConfigError

FOLDER, LABEL = "CONFIG_FILE_SRCDIR", "NODE_LABEL"
DEFAULT, FALLBACKS = "DEFAULT_CONFIG", "FALLBACK_STRATEGIES"
USUAL_LABEL = "nvidia.com/device-plugin.config"

# The kubelet swaps this link when the ConfigMap changes: what is behind it never does.
_DATA = "..data"
# What each strategy makes of the names there are; None is the next strategy's turn, empty text no configuration.
_STRATEGIES: Mapping[str, Callable[[Sequence[str]], str | None]] = {
    "named": lambda names: "default" if "default" in names else None,
    "single": lambda names: names[0] if len(names) == 1 else None,
    "empty": lambda names: "",
}


class Choice(Struct, frozen=True, kw_only=True):
    """The ``name`` of the configuration that holds, empty where none does, and what chose it, in words."""

    name: str
    reason: str


class Named(Struct, frozen=True, kw_only=True):
    """Where named configurations are, and how one of them is chosen."""

    folder: Path
    label: str = USUAL_LABEL
    default: str = ""
    fallbacks: tuple[str, ...] = ("named", "single")

    @property
    def present(self) -> Path:
        """The folder that has the entries at this moment: all of one version of the ConfigMap."""
        data = self.folder / _DATA
        return data.resolve() if data.exists() else self.folder

    @property
    def watched(self) -> list[Path]:
        """What changes when an entry does: the folder behind the link, or where there is none all that is there."""
        folder = self.present
        return [folder] if folder != self.folder else [folder, *sorted(folder.glob("*"))]

    def chosen(self, wanted: str | None) -> tuple[Choice, Path | None]:
        """The choice for a node whose label says ``wanted``, and the file to read; None where that is none.

        Raises:
            ConfigError: the folder cannot be read, what was asked for is not there, or nothing decides.
        """
        entries = self.entries
        try:
            choice = choose(list(entries), wanted, self)
        except ConfigError as error:
            raise ConfigError(f"{self.folder}: {error}") from error
        return choice, entries.get(choice.name)

    @property
    def entries(self) -> Mapping[str, Path]:
        """The files by name, all of one version. Raises ConfigError where the folder cannot be read."""
        try:
            files = sorted(path for path in self.present.iterdir() if path.is_file())
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be read: {error.strerror}") from error
        return {path.name: path for path in files if not path.name.startswith("..")}


def named_in(folder: Path | None, environment: Mapping[str, str]) -> Named | None:
    """What the variables say, with ``folder`` in the place of theirs where it is given; None without any folder.

    Raises:
        ConfigError: a fallback strategy is none.
    """
    if folder is None and not environment.get(FOLDER):
        return None
    usual = Named(folder=folder or Path(environment[FOLDER]))
    words = [word.strip() for word in environment.get(FALLBACKS, "").split(",") if word.strip()]
    for word in words:
        if word not in _STRATEGIES:
            raise ConfigError(f"environment variable {FALLBACKS}: expected {', '.join(_STRATEGIES)}; got {word!r}")
    return Named(
        folder=usual.folder,
        label=environment.get(LABEL) or usual.label,
        default=environment.get(DEFAULT, ""),
        fallbacks=tuple(words) or usual.fallbacks,
    )


def choose(names: Sequence[str], wanted: str | None, among: Named) -> Choice:
    """Which of the names holds for a node whose label says ``wanted``. Raises ConfigError where none does."""
    for name, source in ((wanted, f"label {among.label}={wanted}"), (among.default, f"{DEFAULT}={among.default}")):
        if name and name in names:
            return Choice(name=name, reason=source)
        if name:
            raise ConfigError(f"{source}: there is no such configuration; there is {', '.join(names) or 'none'}")
    for strategy in among.fallbacks:
        if (found := _STRATEGIES[strategy](names)) is not None:
            return Choice(name=found, reason=f"fallback strategy {strategy}")
    raise ConfigError(
        f"nothing says which configuration to use; label the node {among.label}=NAME or set {DEFAULT}; "
        f"there is {', '.join(names) or 'none'}"
    )
