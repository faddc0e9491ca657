"""What the fake API server of ``api_server`` keeps, and the rules by which it lets itself be changed."""

import copy
import re
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from node_agent.kit.latest import Latest
from node_agent.kube import resources
from node_agent.kube.resources import Object
from tests.fakes import api_patches

KNOWN = [value for value in vars(resources).values() if isinstance(value, resources.Resource)]
HAVE_STATUS = {"nodes", "pods", "resourceclaims", "devicetaintrules"}
IMMUTABLE = {
    "resourceslices": ("spec.driver", "spec.pool.name", "spec.nodeName"),
    "resourceclaims": ("spec",),
}
SELECTABLE = {
    "pods": {"spec.nodeName", "status.phase"},
    "resourceslices": {"spec.nodeName", "spec.driver", "spec.pool.name"},
}
# What the server says of an object, which no client can change.
ITS_OWN = ("uid", "creationTimestamp", "generation", "deletionTimestamp")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

Check = Callable[[Object | None, Object], str | None]
"""Looks at an object as it was (None for a new one) and as it shall be; returns what is wrong, such as
``spec.driver: field is immutable``."""


class Refused(Exception):
    """An answer other than success, as the server's Status tells it."""

    def __init__(
        self, code: int, reason: str, message: str, *, retry_after: float | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where objects of a kind are: in a namespace, or in none or all."""

    group: str
    plural: str
    namespace: str = ""

    @property
    def title(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def holds(self, other: "Place") -> bool:
        same = (self.group, self.plural) == (other.group, other.plural)
        return same and self.namespace in ("", other.namespace)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of one object: ``after`` is None where it was deleted, ``last`` how it is shown then."""

    version: int
    place: Place
    before: Object | None
    after: Object | None
    last: Object


Matches = Callable[[Object], bool]


class Store:
    """All objects and the history of their changes; ``revision`` is the newest resourceVersion.

    ``mutations`` change what is written before it is checked, ``checks`` may refuse it; both are by plural. ``kinds``
    has the name of each kind. A watch from before ``forgotten`` is refused.
    """

    def __init__(self) -> None:
        self.revision = Latest(1000)
        self.forgotten = 0
        self.kinds = {(one.group, one.plural): one.kind for one in KNOWN}
        self.mutations: list[Callable[[Object], None]] = []
        self.checks: dict[str, list[Check]] = {}
        self.selectable = copy.deepcopy(SELECTABLE)
        self._objects: dict[tuple[Place, str], Object] = {}
        self._history: list[Change] = []
        self._applied: dict[tuple[Place, str, str], Object] = {}

    def get(self, place: Place, name: str) -> Object:
        found = self._objects.get((place, name))
        if found is None:
            raise Refused(
                404, "NotFound", f'{place.title} "{name}" not found', name=name, group=place.group, kind=place.plural
            )
        return copy.deepcopy(found)

    def select(self, place: Place, matches: Matches | None = None) -> list[Object]:
        """In the order of their keys, as the real one answers."""
        found = [(at.namespace, name, item) for (at, name), item in self._objects.items() if place.holds(at)]
        chosen = (item for *_, item in sorted(found, key=lambda one: one[:2]) if matches is None or matches(item))
        return [copy.deepcopy(item) for item in chosen]

    def since(self, version: int, place: Place) -> Iterator[Change]:
        """The changes after ``version``, oldest first."""
        return (change for change in self._history if change.version > version and place.holds(change.place))

    def forget(self) -> None:
        """Compact: nobody can watch from an earlier version than the present one any more."""
        self.forgotten = self.revision.value
        self._history.clear()

    def create(self, place: Place, body: Object, *, keep_status: bool = False, dry_run: bool = False) -> Object:
        body = copy.deepcopy(body)
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        name = metadata.get("name", "")
        if not NAME.fullmatch(name):
            raise self.invalid(place, name, "metadata.name: a lowercase RFC 1123 subdomain must consist of …")
        if metadata.get("resourceVersion"):
            raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if (place, name) in self._objects:
            raise Refused(409, "AlreadyExists", f'{place.title} "{name}" already exists', name=name)
        if place.plural in HAVE_STATUS and not keep_status:
            body.pop("status", None)
        created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": created, "generation": 1}
        if place.namespace:
            metadata["namespace"] = place.namespace
        return self._write(place, name, None, body, dry_run)

    def update(
        self,
        place: Place,
        name: str,
        body: Object,
        *,
        subresource: str = "",
        keep_status: bool = False,
        dry_run: bool = False,
    ) -> Object:
        old = self.get(place, name)
        metadata = body.get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if metadata.get(field, "") not in ("", old["metadata"][field]):
                raise self._conflict(place, name, field)
        if subresource:
            return self._write(place, name, old, old | {"status": body.get("status", {})}, dry_run)
        if place.plural in HAVE_STATUS and not keep_status:
            body = {key: value for key, value in body.items() if key != "status"}
            body |= {"status": old["status"]} if "status" in old else {}
        kept = {field: old["metadata"][field] for field in ITS_OWN if field in old["metadata"]}
        return self._write(place, name, old, body | {"metadata": metadata | kept}, dry_run)

    def patch(
        self,
        place: Place,
        name: str,
        change: Any,
        how: str,
        *,
        subresource: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Object:
        """``how`` is the kind of patch as in its media type: ``merge``, ``json`` or ``apply``."""
        if how == "apply":
            return self._apply(place, name, change, subresource=subresource, manager=manager, dry_run=dry_run)
        old = self.get(place, name)
        try:
            new = api_patches.merge(old, change) if how == "merge" else api_patches.json_patch(old, change)
        except ValueError as error:
            raise Refused(422, "Invalid", f"the server rejected our request: {error}") from error
        return self.update(place, name, new, subresource=subresource, dry_run=dry_run)

    def delete(self, place: Place, name: str, options: Object, *, dry_run: bool = False) -> Object:
        old = self.get(place, name)
        for field, value in options.get("preconditions", {}).items():
            if value != old["metadata"][field]:
                raise self._conflict(place, name, field)
        if dry_run:
            return old
        if old["metadata"].get("finalizers"):
            marked = old["metadata"] | {"deletionTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
            return self._record(place, name, old, old | {"metadata": marked})
        self._record(place, name, old, None)
        return old

    def invalid(self, place: Place, name: str, *problems: str) -> Refused:
        """A refusal of an object that breaks rules; each problem begins with its field and a colon."""
        causes = [
            {"reason": "FieldValueInvalid", "field": problem.partition(": ")[0], "message": problem.partition(": ")[2]}
            for problem in problems
        ]
        kind = self.kinds.get((place.group, place.plural), place.plural)
        title = f"{kind}.{place.group}" if place.group else kind
        return Refused(422, "Invalid", f'{title} "{name}" is invalid: {"; ".join(problems)}', name=name, causes=causes)

    def selection(self, place: Place, fields: str, labels: str) -> Matches:
        """Whether an object is one of those that selectors name."""
        allowed = {"metadata.name", "metadata.namespace"} | self.selectable.get(place.plural, set())
        kind = f" for {place.group}, Kind={self.kinds.get((place.group, place.plural))}" if place.group else ""
        terms = [(term, field_of) for text, field_of in ((fields, _field), (labels, _label)) for term in _terms(text)]
        for term in _terms(fields):
            if (label := re.split("!?==?", term)[0]) not in allowed:
                raise Refused(400, "BadRequest", f"field label not supported{kind}: {label}")
        return lambda item: all(_holds(term, item, field_of) for term, field_of in terms)

    def _apply(
        self, place: Place, name: str, change: Object, *, subresource: str, manager: str, dry_run: bool
    ) -> Object:
        mine = (place, name, f"{manager}/{subresource}")
        wanted = {key: value for key, value in change.items() if key not in ("apiVersion", "kind")}
        if (place, name) not in self._objects and not subresource:
            made = self.create(place, api_patches.managed(change, manager, wanted), dry_run=dry_run)
        else:
            new = api_patches.apply(self.get(place, name), self._applied.get(mine), wanted)
            new = new if subresource else api_patches.managed(new, manager, wanted)
            made = self.update(place, name, new, subresource=subresource, dry_run=dry_run)
        if not dry_run:
            self._applied[mine] = copy.deepcopy(wanted)
        return made

    def _write(self, place: Place, name: str, old: Object | None, new: Object, dry_run: bool) -> Object:
        new = {key: value for key, value in copy.deepcopy(new).items() if key not in ("apiVersion", "kind")}
        for device in new.get("status", {}).get("devices", ()) if place.plural == "resourceclaims" else ():
            device.setdefault("conditions", None)  # as the real one answers
        for mutate in self.mutations:
            mutate(new)
        self._check(place, name, old, new)
        if old is not None and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if old is not None:
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if dry_run or new == old:
            return new
        return self._record(place, name, old, new)

    def _check(self, place: Place, name: str, old: Object | None, new: Object) -> None:
        problems = [problem for check in self.checks.get(place.plural, ()) if (problem := check(old, new))]
        problems += [
            f"{path}: Invalid value: {value_at(new, path)!r}: field is immutable"
            for path in IMMUTABLE.get(place.plural, ())
            if old is not None and value_at(old, path) != value_at(new, path)
        ]
        if problems:
            raise self.invalid(place, name, *problems)

    def _record(self, place: Place, name: str, old: Object | None, new: Object | None) -> Object:
        version = self.revision.value + 1
        shown = copy.deepcopy(new if new is not None else old) or {}
        shown["metadata"]["resourceVersion"] = str(version)
        if new is not None and new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            new = None
        if new is None:
            del self._objects[place, name]
        else:
            self._objects[place, name] = shown
        change = Change(version=version, place=place, before=old, after=shown if new is not None else None, last=shown)
        self._history.append(change)
        self.revision.set(version)
        return copy.deepcopy(shown)

    def _conflict(self, place: Place, name: str, field: str) -> Refused:
        why = "the object has been modified; please apply your changes to the latest version and try again"
        if field == "uid":
            why = "Precondition failed: UID in precondition is another one"
        return Refused(409, "Conflict", f'Operation cannot be fulfilled on {place.title} "{name}": {why}', name=name)


def value_at(item: Any, path: str) -> Any:
    """What stands at a dotted path, or None."""
    for part in path.split("."):
        item = item.get(part) if isinstance(item, dict) else None
    return item


def strip_at(item: Any, path: str) -> None:
    """Remove what stands at a dotted path; ``[*]`` after a part is each entry of its list."""
    part, _, rest = path.partition(".")
    key, every = part.removesuffix("[*]"), part.endswith("[*]")
    if not isinstance(item, dict) or key not in item:
        return
    if not rest:
        del item[key]
    for inner in (item.get(key) if every else [item.get(key)]) or []:
        strip_at(inner, rest) if rest else None


def _terms(selector: str) -> list[str]:
    return [term.strip() for term in selector.split(",") if term.strip()]


def _field(item: Object, path: str) -> Any:
    return value_at(item, path) or ""


def _label(item: Object, name: str) -> Any:
    return item["metadata"].get("labels", {}).get(name)


def _holds(term: str, item: Object, field_of: Callable[[Object, str], Any]) -> bool:
    """One term of a selector: ``a=b``, ``a==b``, ``a!=b``, ``a`` or ``!a``."""
    name, operator, value = re.fullmatch(r"(!?[^!=]+)(!=|==?|)(.*)", term).groups()  # type: ignore[union-attr]
    if operator:
        return (field_of(item, name) == value) is (operator != "!=")
    return (field_of(item, name.lstrip("!")) is not None) is not name.startswith("!")
