"""From the sources to the settings, and no mistake passes.

Command line over environment over the named configuration of the node over file over defaults.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from node_agent.config.check import Problem, problems
from node_agent.config.file import File
from node_agent.config.named import Named, named_in
from node_agent.config.notices import flat, notices
from node_agent.config.rules import broken_rules
from node_agent.config.settings import Settings, settings
from node_agent.config.sources import Layer, from_document, from_environment, from_file, from_flags, overlay
from node_agent.errors import ConfigError
from node_agent.kit.unix import identity
from node_agent.model.vendor import NVIDIA, VENDORS, Vendor

DEFAULT = "default"
# More at once help nobody, and a hostile file could have twenty thousand.
PROBLEMS_SHOWN = 50


class Resolved(Struct, frozen=True, kw_only=True):
    """The settings in force, each value of the file's form and where it came from, and what the operator should know.

    ``values`` and ``origin`` have every key by its dotted path. ``documents`` are the texts that it was made of, by
    what to call them; ``said`` is what these say, on top of each other.
    """

    settings: Settings
    values: Mapping[str, object]
    origin: Mapping[str, str]
    notices: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    said: Mapping[str, object] = field(default_factory=dict)


def nvidia(sysfs: Path) -> Vendor:
    """Whose GPUs a machine has where nobody looks. It has a name, so that sources can be handed to another process."""
    return NVIDIA


class Sources(Struct, frozen=True, kw_only=True):
    """Where the configuration comes from. ``flags`` are the command line's values by dotted path, None if not given.

    ``vendor_of`` tells whose GPUs a machine has by its /sys, where the configuration leaves that open.
    """

    vendor_of: Callable[[Path], Vendor] = nvidia
    file: Path | None = None
    named: Named | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, object] = field(default_factory=dict)

    def resolve(self, label: str | None = None) -> Resolved:
        """Put the configuration together for a node with this label.

        Raises:
            ConfigError: names every problem with its path, where the value came from, and what would be valid.
        """
        documents = [*([from_file(self.file)] if self.file else []), *self._chosen(label)]
        return _resolved(documents, self.environment, self.flags, self.vendor_of)

    def _chosen(self, label: str | None) -> Iterator[Layer]:
        if self.named is None:
            return
        choice, path = self.named.chosen(label)
        if path is not None:
            name = f"{self.named.folder / choice.name}, chosen by {choice.reason}"
            yield replace(from_file(path), origin=name)

    def identity(self) -> Hashable:
        """Another one when what would be read may be another: the files' identities, without reading them."""
        files = [self.file] if self.file else []
        try:
            if self.named is not None:
                files += self.named.watched
            return tuple((path, identity(path)) for path in files)
        except OSError as error:
            return str(error)  # whoever reads the files is told why that cannot be done

    @property
    def has_documents(self) -> bool:
        return self.file is not None or self.named is not None

    @property
    def bare(self) -> "Sources":
        """What can be relied on whatever the documents say: environment and command line."""
        return replace(self, file=None, named=None)


def sources(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    folder: Path | None = None,
    vendor_of: Callable[[Path], Vendor] = nvidia,
) -> Sources:
    """The sources of an agent: the variables name a file and a folder where the command line does not.

    Raises:
        ConfigError: a variable that says how to choose cannot be understood.
    """
    return Sources(
        vendor_of=vendor_of,
        file=file or (Path(environment["CONFIG_FILE"]) if environment.get("CONFIG_FILE") else None),
        named=named_in(folder, environment),
        environment=environment,
        flags=flags,
    )


def resolve(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Resolved:
    """Put the configuration of a node without label together. Raises ConfigError."""
    return sources(file, environment, flags).resolve()


def _resolved(
    documents: list[Layer],
    environment: Mapping[str, str],
    flags: Mapping[str, object],
    vendor_of: Callable[[Path], Vendor],
) -> Resolved:
    layers = [*documents, *from_environment(environment), from_flags(flags)]
    found = list(islice(_layer_problems(layers), PROBLEMS_SHOWN))
    if found:
        raise ConfigError(_complaint(found))
    tree, origins = overlay(layers)
    content = msgspec.convert(tree, File)
    vendor = VENDORS.get(content.agent.vendor) or vendor_of(Path(content.agent.paths.sysfs_root))
    broken = broken_rules(content, vendor)
    found = [_placed(problem, origins.get(problem.path.partition("[")[0])) for problem in broken]
    if found:
        raise ConfigError(_complaint(found))
    values = flat(content)
    return Resolved(
        settings=settings(content, vendor),
        values=values,
        origin={path: origins.get(path, DEFAULT) for path in values},
        notices=tuple(notices(content, environment)),
        documents=tuple(layer.origin for layer in documents),
        said=overlay(documents)[0],
    )


def check(text: str, name: str) -> list[str]:
    """The problems of a file's text by itself, each in one line; ``name`` is what to call the file."""
    try:
        layer = from_document(text.encode(errors="replace"), name)
    except ConfigError as error:
        return [str(error)]
    found = list(islice(_layer_problems([layer]), PROBLEMS_SHOWN))
    if found:
        return found
    content = msgspec.convert(overlay([layer])[0], File)
    vendor = VENDORS.get(content.agent.vendor, NVIDIA)
    return [_placed(one, name) for one in broken_rules(content, vendor)]


def _layer_problems(layers: Iterable[Layer]) -> Iterator[str]:
    """Each layer by itself, so that a mistake shows even where another layer lies over it."""
    for layer in layers:
        for problem in problems(layer.values):
            yield _placed(problem, layer.origin)


def _placed(problem: Problem, origin: str | None) -> str:
    return f"{problem} ({origin})" if origin else str(problem)


def _complaint(found: list[str]) -> str:
    if len(found) == 1:
        return found[0]
    return "\n  ".join([f"{len(found)}{' or more' * (len(found) == PROBLEMS_SHOWN)} problems:", *found])
