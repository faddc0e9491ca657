"""How the fake API server of ``api_server`` answers one request from its store, and who may ask."""

import base64
import json

from node_agent.kube.resources import RESOURCE_GROUP, Object
from tests.fakes.api_requests import Asked
from tests.fakes.api_store import HAVE_STATUS, Place, Refused, Store

PATCHES = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/apply-patch+yaml": "apply",
}
UNKNOWN = "the server could not find the requested resource"


class Answers:
    """Answers from ``store``. ``versions`` are those of each group, newest first; a group not in it has any.

    ``token`` is the one that is taken, ``""`` takes any; ``forbidden`` has the verbs and resources without a right.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.token = ""
        self.versions: dict[str, tuple[str, ...]] = {RESOURCE_GROUP: ("v1",)}
        self.forbidden: set[tuple[str, str]] = set()

    def admit(self, asked: Asked) -> None:
        """Raises Refused where the token, the right or the version is missing."""
        if self.token and asked.headers.get("authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        place = asked.place
        if place is None:
            if (asked.verb, asked.path) in self.forbidden:
                who = 'User "system:serviceaccount:default:test"'
                raise Refused(403, "Forbidden", f'forbidden: {who} cannot {asked.verb} path "{asked.path}"')
            return
        resource = "/".join(filter(None, (place.plural, asked.subresource)))
        if (asked.verb, resource) in self.forbidden:
            where = f'in the namespace "{place.namespace}"' if place.namespace else "at the cluster scope"
            who = f'User "system:serviceaccount:default:test" cannot {asked.verb} resource "{resource}"'
            raise Refused(403, "Forbidden", f'{place.title} is forbidden: {who} in API group "{place.group}" {where}')
        if asked.version not in self.versions.get(place.group, (asked.version,)):
            raise Refused(404, "NotFound", UNKNOWN)

    def carry_out(self, asked: Asked) -> tuple[int, Object]:
        """Do what was asked; returns the status and the content of the answer.

        Raises:
            Refused: the answer is another than success, and nothing was done.
        """
        place = asked.place
        if place is None:
            return 200, self._about(asked.path)
        if asked.subresource and (asked.subresource != "status" or place.plural not in HAVE_STATUS):
            raise Refused(404, "NotFound", UNKNOWN)
        if place.plural == "selfsubjectaccessreviews":
            return 201, self._review(asked.body)
        if asked.verb == "create":
            self.store.kinds.setdefault((place.group, place.plural), asked.body.get("kind", ""))
        if asked.verb == "list":
            return 200, self._list(asked, place)
        if asked.verb == "deletecollection":
            return 200, self._delete_all(asked, place)
        return (201 if asked.verb == "create" else 200), self.shown(asked, self._done(asked, place))

    def shown(self, asked: Asked, item: Object) -> Object:
        """An object with its kind, and the version that was asked for."""
        assert asked.place is not None
        return {"kind": self._kind(asked.place), "apiVersion": _api_version(asked, asked.place), **item}

    def _done(self, asked: Asked, place: Place) -> Object:
        """Do to one object what was asked; returns it as it then is."""
        body, dry_run = asked.body, asked.dry_run
        match asked.verb:
            case "get":
                return self.store.get(place, asked.name)
            case "create":
                return self.store.create(place, body, dry_run=dry_run)
            case "update":
                return self.store.update(place, asked.name, body, subresource=asked.subresource, dry_run=dry_run)
            case "patch":
                return self._patch(asked, place)
            case "delete":
                return self.store.delete(place, asked.name, body, dry_run=dry_run)
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _patch(self, asked: Asked, place: Place) -> Object:
        how, manager = PATCHES.get(asked.headers.get("content-type", "")), asked.query.get("fieldManager", "")
        if how is None:
            raise Refused(415, "UnsupportedMediaType", f"the fake server takes {', '.join(PATCHES)}")
        if how == "apply" and not manager:
            raise Refused(400, "BadRequest", "fieldManager is required for apply patch")
        return self.store.patch(
            place, asked.name, asked.body, how, subresource=asked.subresource, manager=manager, dry_run=asked.dry_run
        )

    def _select(self, asked: Asked, place: Place) -> list[Object]:
        fields, labels = asked.query.get("fieldSelector", ""), asked.query.get("labelSelector", "")
        return self.store.select(place, self.store.selection(place, fields, labels))

    def _review(self, review: Object) -> Object:
        """Whether what is asked about would be allowed."""
        about = review["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        return review | {"status": {"allowed": (about["verb"], resource) not in self.forbidden}}

    def _delete_all(self, asked: Asked, place: Place) -> Object:
        found = self._select(asked, place)
        for item in found:
            at = Place(group=place.group, plural=place.plural, namespace=item["metadata"].get("namespace", ""))
            self.store.delete(at, item["metadata"]["name"], {}, dry_run=asked.dry_run)
        return self._listed(asked, place, found, {})

    def _list(self, asked: Asked, place: Place) -> Object:
        found = self._select(asked, place)
        version, start = self._continued(asked)
        size = int(asked.query.get("limit", "0")) or len(found)
        metadata: Object = {"resourceVersion": str(version)}
        if (left := len(found) - start - size) > 0:
            token = json.dumps([version, start + size]).encode()
            metadata |= {"continue": base64.urlsafe_b64encode(token).decode(), "remainingItemCount": left}
        return self._listed(asked, place, found[start : start + size], metadata)

    def _listed(self, asked: Asked, place: Place, items: list[Object], metadata: Object) -> Object:
        # As on a real server, the items of a list say neither their kind nor their version.
        head = {"kind": f"{self._kind(place)}List", "apiVersion": _api_version(asked, place)}
        return head | {"metadata": metadata, "items": items}

    def _continued(self, asked: Asked) -> tuple[int, int]:
        """The version of the list, and the number of the item with which this page begins."""
        if not (token := asked.query.get("continue")):
            return self.store.revision.value, 0
        version, start = json.loads(base64.urlsafe_b64decode(token))
        if version < self.store.forgotten:
            raise Refused(410, "Expired", "The provided continue parameter is too old to display a consistent list")
        return version, start

    def _about(self, path: str) -> Object:
        """What the server says of itself: the versions of a group, and whether it is well."""
        root, _, group = path.strip("/").partition("/")
        if root == "apis" and not group:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": name} for name in self.versions]}
        if root == "apis" and self.versions.get(group):
            served = [{"groupVersion": f"{group}/{version}", "version": version} for version in self.versions[group]]
            head = {"kind": "APIGroup", "apiVersion": "v1", "name": group}
            return head | {"versions": served, "preferredVersion": served[0]}
        if root in ("readyz", "livez", "version"):
            return {"gitVersion": "v1.37.0-fake"}
        raise Refused(404, "NotFound", UNKNOWN)

    def _kind(self, place: Place) -> str:
        return self.store.kinds.get((place.group, place.plural), "")


def _api_version(asked: Asked, place: Place) -> str:
    return f"{place.group}/{asked.version}" if place.group else asked.version
