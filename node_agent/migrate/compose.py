"""What was found, put together: configurations that the agent loads, MIG layouts, what is laid over its DaemonSet."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import yaml
from msgspec import Struct, field

from node_agent.config.check import known_paths
from node_agent.config.file import File
from node_agent.config.notices import notices
from node_agent.config.resolve import check
from node_agent.config.sources import Layer, Tree, from_document, nested, overlay
from node_agent.errors import ConfigError
from node_agent.migrate.documents import USUAL_NAME
from node_agent.migrate.keys import Finding, Layouts, Monitoring, Named, Piece, PodPart, Setting
from node_agent.partition.configs import parse

LAYOUTS_FILE = "/layouts/config.yaml"

_NAME = re.compile(r"(?!\.\.)[-._a-zA-Z0-9]{1,253}")
# NVIDIA's programs read these and do nothing by them; the agent would.
_IGNORED = {
    "resources": "NVIDIA's plugin renames nothing; the agent would: put it back if that is wanted",
    **{
        f"sharing.{kind}.resources[].{key}": f"NVIDIA's plugin shares as if it were not there: put it back if {wish}"
        for kind in ("timeSlicing", "mps")
        for key, wish in (("rename", "shares shall have that name"), ("devices", "only those shall be shared"))
    },
}


class Migration(Struct, frozen=True, kw_only=True):
    """What takes the place of NVIDIA's values. ``template`` has parts of the pod template by their dotted paths."""

    configurations: Mapping[str, str]
    layouts: str | None
    template: Mapping[str, Any]
    mps: bool
    mig: bool
    monitoring: bool
    findings: tuple[Finding, ...]


class _Found(Struct):
    """What the pieces say so far; of two that say one thing differently the last holds, and that is told."""

    settings: dict[str, object] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    layouts: str | None = None
    monitoring: bool = False
    findings: list[Finding] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        match piece:
            case Finding():
                self.findings.append(piece)
            case Setting(path=path, value=value):
                self._put(self.settings, path, value)
            case Named(name=name, text=text):
                self._put(self.named, name, text)
            case PodPart(path=path, value=value):
                self._lay(path, value)
            case Layouts(text=text):
                self._differs("MIG layouts", self.layouts, text)
                self.layouts = text
            case Monitoring():
                self.monitoring = True

    def _put(self, into: dict[str, Any], path: str, value: object) -> None:
        self._differs(path, into.get(path), value)
        into[path] = value

    def _lay(self, path: str, value: Any) -> None:
        """A list is added to, the sections of labels and selectors key by key."""
        there = self.template.get(path)
        if isinstance(there, list):
            self.template[path] = [*there, *(one for one in value if one not in there)]
        elif isinstance(there, dict) and path != "spec.affinity":
            for key, below in value.items():
                self._put(there, key, below)
        else:
            self._put(self.template, path, dict(value) if isinstance(value, dict) else value)

    def _differs(self, path: str, there: object, value: object) -> None:
        if there is not None and there != value:
            self.findings.append(
                Finding(path=path, fate="to decide", why="said twice, differently: the last one is taken")
            )


def compose(pieces: Iterable[Piece]) -> Migration:
    """Put the pieces together.

    Raises:
        ConfigError: what comes of it is no configuration that the agent would load, or no file of layouts.
    """
    found = _Found()
    for piece in pieces:
        found.add(piece)
    if found.layouts is not None:
        _require_layouts(found.layouts)
        found.settings["agent.mig.configFile"] = LAYOUTS_FILE
    if strange := [name for name in found.named if not _NAME.fullmatch(name)]:
        raise ConfigError(f"{strange[0]!r}: expected the key of a ConfigMap: letters, digits, dots, _ and -")
    trees = {name: _tree(name, text, found) for name, text in (found.named or {USUAL_NAME: ""}).items()}
    return Migration(
        configurations={name: _text(name, tree) for name, tree in trees.items()},
        layouts=found.layouts,
        template=found.template,
        mps=any(_wants_mps(tree) for tree in trees.values()),
        mig=found.layouts is not None or any(_wants_mig(tree) for tree in trees.values()),
        monitoring=found.monitoring,
        findings=tuple([*found.findings, *(one for name, tree in trees.items() for one in _notices(name, tree))]),
    )


def _tree(name: str, text: str, found: _Found) -> Tree:
    """A named configuration with what the values say over it, as NVIDIA's programs have it."""
    kept = _kept(from_document(text.encode(), name).values, "", name, found.findings)
    return overlay(
        [Layer(origin=name, values={"version": "v1", **kept}), Layer(origin="", values=nested(found.settings))]
    )[0]


def _kept(values: Mapping[str, Any], section: str, name: str, told: list[Finding]) -> dict[str, Any]:
    """What of a file means the same to the agent; the rest is told."""
    kept = {}
    for key, value in values.items():
        path = f"{section}{key}"
        if path not in known_paths():
            told.append(Finding(path=f"{name}: {path}", fate="unknown", why="left out; NVIDIA's programs ignore it"))
        elif path in _IGNORED and value:
            told.append(Finding(path=f"{name}: {path}", fate="to decide", why=f"left out; {_IGNORED[path]}"))
        else:
            kept[key] = _below(value, path, name, told)
    return kept


def _below(value: Any, path: str, name: str, told: list[Finding]) -> Any:
    if isinstance(value, dict):
        return _kept(value, f"{path}.", name, told)
    if isinstance(value, list):
        return [_kept(one, f"{path}[].", name, told) if isinstance(one, dict) else one for one in value]
    return value


def _text(name: str, tree: Tree) -> str:
    """The file, as the agent itself finds it good."""
    text = yaml.safe_dump(tree, sort_keys=False, width=120)
    if problems := check(text, name):
        raise ConfigError(
            "\n  ".join(["what comes of these values cannot be used; mend them and try again:", *problems])
        )
    return text


def _require_layouts(text: str) -> None:
    try:
        parse(text.encode())
    except ConfigError as error:
        raise ConfigError(f"MIG layouts: {error}") from error


def _wants_mps(tree: Tree) -> bool:
    file = msgspec.convert(tree, File)
    return file.sharing.mps is not None or any(rule.strategy == "mps" for rule in file.agent.sharing.rules)


def _wants_mig(tree: Tree) -> bool:
    """Whether GPUs may have to be cut. One whose layouts are nobody's to change only has its MIG devices offered."""
    file = msgspec.convert(tree, File)
    by_layouts = file.flags.mig_strategy != "none" and file.agent.mig.layouts != "never"
    return by_layouts or bool(file.agent.mig.on_demand)


def _notices(name: str, tree: Tree) -> Iterator[Finding]:
    for sentence in notices(msgspec.convert(tree, File), {}):
        key, _, why = sentence.partition(": ")
        yield Finding(path=f"{name}: {key}", fate="to decide", why=why)
