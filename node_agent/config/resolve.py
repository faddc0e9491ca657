"""From the sources to the settings: command line over environment over file over defaults, and no mistake passes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from node_agent.config.check import Problem, problems
from node_agent.config.file import File
from node_agent.config.notices import flat, notices
from node_agent.config.rules import broken_rules
from node_agent.config.settings import Settings, settings
from node_agent.config.sources import Layer, from_document, from_environment, from_file, from_flags, overlay
from node_agent.errors import ConfigError

DEFAULT = "default"
# More at once help nobody, and a hostile file could have twenty thousand.
PROBLEMS_SHOWN = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The settings in force, each value of the file's form and where it came from, and what the operator should know.

    ``values`` and ``origin`` have every key by its dotted path.
    """

    settings: Settings
    values: Mapping[str, object]
    origin: Mapping[str, str]
    notices: tuple[str, ...] = ()


def resolve(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]) -> Resolved:
    """Put the configuration together. ``flags`` are the command line's values by dotted path, None where not given.

    The variable ``CONFIG_FILE`` names the file where ``file`` is None.

    Raises:
        ConfigError: names every problem with its path, where the value came from, and what would be valid.
    """
    named = file or (Path(environment["CONFIG_FILE"]) if environment.get("CONFIG_FILE") else None)
    layers = [*([from_file(named)] if named else []), *from_environment(environment), from_flags(flags)]
    found = list(islice(_layer_problems(layers), PROBLEMS_SHOWN))
    if found:
        raise ConfigError(_complaint(found))
    tree, origins = overlay(layers)
    content = msgspec.convert(tree, File)
    found = [_placed(problem, origins.get(problem.path.partition("[")[0])) for problem in broken_rules(content)]
    if found:
        raise ConfigError(_complaint(found))
    values = flat(content)
    return Resolved(
        settings=settings(content),
        values=values,
        origin={path: origins.get(path, DEFAULT) for path in values},
        notices=tuple(notices(content, environment)),
    )


def check(text: str, name: str) -> list[str]:
    """The problems of a file's text by itself, each in one line; ``name`` is what to call the file."""
    try:
        layer = from_document(text.encode(errors="replace"), name)
    except ConfigError as error:
        return [str(error)]
    found = list(islice(_layer_problems([layer]), PROBLEMS_SHOWN))
    return found or [_placed(one, name) for one in broken_rules(msgspec.convert(overlay([layer])[0], File))]


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
