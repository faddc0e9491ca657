"""Compares plain values with the structs of ``file`` and finds every problem, each with its path and what to do."""

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from node_agent.config.file import File


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong at the dotted ``path`` of a key; the path is empty where the whole document is meant."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def problems(value: object, kind: Any = File, path: str = "") -> Iterator[Problem]:
    """All that keeps ``value`` from being a ``kind``, which is a struct, or the type of one of its fields.

    A key without a value says nothing, as in NVIDIA's programs; it must be a valid one all the same.
    """
    section, item = _section(kind), _item(kind)
    if section is not None and isinstance(value, Mapping):
        yield from _section_problems(value, section, path)
    elif item is not None and isinstance(value, list):
        yield from _list_problems(value, kind, item, path)
    else:
        yield from _value_problems(value, kind, path)


def _section_problems(values: Mapping[str, object], section: type[msgspec.Struct], path: str) -> Iterator[Problem]:
    fields = {known.encode_name: known for known in msgspec.structs.fields(section)}
    for key, value in values.items():
        if key not in fields:
            yield Problem(path=_join(path, key[:60]), message=f"unknown key{_hint(key, path, tuple(fields))}")
        elif value is not None:
            yield from problems(value, fields[key].type, _join(path, key))
    for key, known in fields.items():
        if known.required and values.get(key) is None:
            yield Problem(path=_join(path, key), message=f"is missing; expected {_expected(known.type)}")


def _list_problems(values: list[object], kind: Any, item: Any, path: str) -> Iterator[Problem]:
    sound = True
    for number, value in enumerate(values):
        for problem in problems(value, item, f"{path}[{number}]"):
            sound = False
            yield problem
    if sound:
        yield from _value_problems(values, kind, path)


def _value_problems(value: object, kind: Any, path: str) -> Iterator[Problem]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        yield Problem(path=path, message=f"expected {_expected(kind)}; got {shown(value)}{_meant(value, kind)}")


def _meant(value: object, kind: Any) -> str:
    """The nearest of the words that may stand there."""
    words = [str(word) for one in _alternatives(kind) if get_origin(one) is Literal for word in get_args(one)]
    near = get_close_matches(str(value).lower(), words, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _alternatives(kind: Any) -> Iterator[Any]:
    """The types among which a value may choose, without what is annotated to them."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind


def _section(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a value may be, if any."""
    return next((one for one in _alternatives(kind) if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)


def _item(kind: Any) -> Any:
    """The type of the items where a value may be a list, else None."""
    return next((get_args(one)[0] for one in _alternatives(kind) if get_origin(one) is tuple), None)


def _expected(kind: Any) -> str:
    """What may stand there, in words: the type's own description, or one that follows from it."""
    if get_origin(kind) is Annotated:
        described = [note.description for note in get_args(kind)[1:] if note.description]
        return described[0] if described else _expected(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _either([_expected(one) for one in get_args(kind) if one is not type(None)])
    if get_origin(kind) is Literal:
        return _either([str(one) for one in get_args(kind)])
    if get_origin(kind) is tuple:
        return f"a list of {_expected(get_args(kind)[0])}"
    if _section(kind) is not None:
        return f"a section with {', '.join(known.encode_name for known in msgspec.structs.fields(kind))}"
    return {bool: "true or false", str: "text"}[kind]


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def shown(value: object) -> str:
    """A value as the operator wrote it, in a few words: it may be as large as the whole file."""
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return json.dumps(value[:60] if isinstance(value, str) else value, ensure_ascii=False, default=str)


@cache
def known_paths(section: type[msgspec.Struct] = File, path: str = "") -> tuple[str, ...]:
    """The paths of all keys that the file may have, in its order; ``[]`` stands for the number of an item."""
    paths: list[str] = []
    for known in msgspec.structs.fields(section):
        here, item = _join(path, known.encode_name), _item(known.type)
        below = _section(known.type) or _section(item)
        paths += [here, *(known_paths(below, here if item is None else f"{here}[]") if below else ())]
    return tuple(paths)


def _hint(key: str, path: str, beside: Sequence[str]) -> str:
    """The nearest valid key: the same word in other letters here, or on another level, else one like it."""
    here = {one.lower(): _join(path, one) for one in beside}
    anywhere = {one.rpartition(".")[2].lower(): one for one in reversed(known_paths())}
    for known, cutoff in ((here, 1.0), (anywhere, 1.0), (here, 0.6), (anywhere, 0.75)):
        for near in get_close_matches(key.lower(), known, n=1, cutoff=cutoff):
            return f"; did you mean {known[near]}?"
    return f"; there is {', '.join(beside)}"
