"""The patches that the fake API server of ``api_server`` takes: merge, JSON and server-side apply."""

from collections.abc import Callable
from typing import Any

# Lists whose entries are told apart by these fields when they are applied; every other list is replaced whole.
LIST_KEYS = {
    "metadata.ownerReferences": ("uid",),
    "spec.taints": ("key", "effect"),
    "status.conditions": ("type",),
    "status.devices": ("driver", "device", "pool", "shareID"),
    "status.devices.conditions": ("type",),
}


def merge(current: Any, change: Any) -> Any:
    """RFC 7386: dicts are merged, null removes, everything else replaces."""
    if not isinstance(change, dict):
        return change
    merged = dict(current) if isinstance(current, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def json_patch(current: Any, operations: list[dict[str, Any]]) -> Any:
    """RFC 6902 with ``add``, ``remove``, ``replace`` and ``test``, on a copy that the caller gives away.

    Raises:
        ValueError: a test failed, or a path leads nowhere.
    """
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at = current
        try:
            for part in parts[:-1]:
                at = at[int(part) if isinstance(at, list) else part]
            OPERATIONS[operation["op"]](at, parts[-1], operation.get("value"))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"cannot {operation['op']} {operation['path']}: {error!r}") from error
    return current


def _add(at: Any, key: str, value: Any) -> None:
    if isinstance(at, list):
        at.insert(len(at) if key == "-" else int(key), value)
    else:
        at[key] = value


def _replace(at: Any, key: str, value: Any) -> None:
    _remove(at, key, value)
    _add(at, key, value)


def _remove(at: Any, key: str, _: Any) -> None:
    del at[int(key) if isinstance(at, list) else key]


def _test(at: Any, key: str, value: Any) -> None:
    if (found := at[int(key) if isinstance(at, list) else key]) != value:
        raise ValueError(f"tested {key} for {value!r}, found {found!r}")


OPERATIONS: dict[str, Callable[[Any, str, Any], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
}


def apply(current: Any, before: Any, wanted: Any, path: str = "") -> Any:
    """What a manager applied before and does not want any more goes, and what it wants is there.

    Simplified: fields are not owned by anybody else, as if every manager applied with force.
    """
    if isinstance(wanted, dict):
        current, before = _dict(current), _dict(before)
        kept = {key: value for key, value in current.items() if key in wanted or key not in before}
        return kept | {k: apply(kept.get(k), before.get(k), v, f"{path}.{k}".lstrip(".")) for k, v in wanted.items()}
    if isinstance(wanted, list) and path in LIST_KEYS:
        return _apply_list(current or [], before or [], wanted, path)
    return wanted


def managed(item: Any, manager: str, wanted: Any) -> Any:
    """The object with the record of which labels a manager has applied; of other fields none is kept."""
    labels: dict[str, Any] = {f"f:{key}": {} for key in wanted.get("metadata", {}).get("labels", {})}
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": labels}}}
    before = item["metadata"].get("managedFields") or ()
    kept = [one for one in before if (one.get("manager"), one.get("operation")) != (manager, "Apply")]
    fields = [*kept, entry] if labels else kept
    return item | {"metadata": item["metadata"] | ({"managedFields": fields} if fields or before else {})}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _apply_list(current: list[Any], before: list[Any], wanted: list[Any], path: str) -> list[Any]:
    theirs, past, ours = (
        {tuple(item.get(field) for field in LIST_KEYS[path]): item for item in items}
        for items in (current, before, wanted)
    )
    kept = {key: item for key, item in theirs.items() if key in ours or key not in past}
    kept |= {key: apply(theirs.get(key), past.get(key), item, path) for key, item in ours.items()}
    return list(kept.values())
