"""What a file of NVIDIA's is, and a walk through it: each key becomes pieces, or is told to be unknown."""

from collections.abc import Iterator, Mapping
from typing import Any

from node_agent.config.document import read
from node_agent.errors import ConfigError
from node_agent.migrate.keys import Chart, Finding, Key, Layouts, Named, Piece
from node_agent.migrate.readers import config_map
from node_agent.migrate.tables import CHARTS, GPU_OPERATOR

# What a file of the device plugin has at its top, and which of it no values have there.
_CONFIGURATION = frozenset({"version", "flags", "resources", "sharing", "imex", "agent"})
_OWN_WORDS = frozenset({"version", "flags", "sharing"})
USUAL_NAME = "default"


def pieces(data: bytes, chart: str | None = None) -> Iterator[Piece]:
    """What a file comes to: Helm values (of ``chart``, if that is said), a ClusterPolicy, a ConfigMap or an entry.

    Raises:
        ConfigError: it is no YAML, or nobody can tell whose it is.
    """
    values = read(data)
    if not isinstance(values, dict) or not values:
        raise ConfigError("expected Helm values, a ClusterPolicy, a ConfigMap or a configuration; got something else")
    kind = values.get("kind")
    if kind == "ConfigMap":
        yield from config_map("data", values.get("data") or {})
    elif kind == "ClusterPolicy":
        yield from walk(GPU_OPERATOR, values.get("spec") or {}, "spec.")
    elif kind is not None:
        raise ConfigError(f"kind: expected ConfigMap or ClusterPolicy; got {kind}")
    elif "mig-configs" in values:
        yield Layouts(text=data.decode())
    elif chart is None and values.keys() <= _CONFIGURATION and values.keys() & _OWN_WORDS:
        yield Named(name=USUAL_NAME, text=data.decode())
    else:
        yield from walk(CHARTS[chart] if chart else recognised(values), values)


def recognised(values: Mapping[str, Any]) -> Chart:
    """The chart that has the most of these keys at its top. Raises ConfigError where that is none, or several."""
    scores = {name: sum(map(one.knows, values)) for name, one in CHARTS.items()}
    best = [name for name, score in scores.items() if score and score == max(scores.values())]
    if len(best) != 1:
        of = " or ".join(best) if best else "any known chart"
        raise ConfigError(f"these may be values of {of}: say which with --chart ({', '.join(CHARTS)})")
    return CHARTS[best[0]]


def walk(chart: Chart, values: Mapping[str, Any], before: str = "", section: str = "") -> Iterator[Piece]:
    """The pieces of a section's values. ``before`` is what stands before the chart's own paths in the file."""
    for key, value in _speaking(chart, values, section):
        path = f"{section}{key}"
        if path in chart.keys:
            yield from _met(chart.keys[path], value, before)
        elif path in chart.sections and isinstance(value, dict | None):
            yield from walk(chart, value or {}, before, f"{path}.")
        elif path != "global":  # Helm adds it to all values
            yield Finding(path=f"{before}{path}", fate="unknown", why=f"no key of {chart.name} that is known here")


def _speaking(chart: Chart, values: Mapping[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    """All of a section; of one that is switched off the switch alone."""
    if values.get("enabled") is False and f"{section}enabled" in chart.keys:
        yield "enabled", False
    else:
        yield from values.items()


def _says_nothing(value: Any) -> bool:
    """Nothing stands there, or what is there is switched off."""
    if isinstance(value, dict):
        return value.get("enabled") is False or all(map(_says_nothing, value.values()))
    return value is None or value in ("", [])


def _met(key: Key, value: Any, before: str) -> Iterator[Piece]:
    path = f"{before}{key.path}"
    if _says_nothing(value):
        return
    if key.read is None:
        if value is not False:
            yield Finding(path=path, fate=key.fate, why=key.what)
        return
    made = list(key.read(path, value))
    if not all(isinstance(one, Finding) for one in made):
        yield Finding(path=path, fate=key.fate, why=key.what)
    yield from made
