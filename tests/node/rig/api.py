"""The node's API server: any kind of object by its name, in the API's own JSON, over plain HTTPS.

The kind is looked up in the server's discovery, so custom resources work as the built-in ones do. It is the test's own
way to the API, independent of the client that the agent under test uses.
"""

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.node.rig.waiting import RigError

Object = dict[str, Any]
"""An API object, as its JSON."""

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MERGE_PATCH = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class ApiError(RigError):
    """The API server's answer to a request that it refused: ``code`` is HTTP's, ``reason`` Kubernetes' own word."""

    def __init__(self, request: str, code: int, status: Object) -> None:
        super().__init__(f"{request} answered {code}: {status.get('message', status)}")
        self.code = code
        self.reason = str(status.get("reason", ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Where objects of a kind are: ``prefix`` is such as ``/apis/apps/v1``, ``plural`` the last part of the path."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        parts = ["namespaces", namespace] if self.namespaced and namespace else []
        return "/".join([self.prefix, *parts, self.plural, *filter(None, (name, subresource))])


class Api:
    """One identity's way to the API server. Objects are named by kind and name, in namespace ``default`` if in any.

    ``created`` has everything that was made through this object, oldest first, for whoever cleans up.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.created: list[Object] = []
        self._host = urllib.parse.urlsplit(cluster["server"]).netloc
        self._token = user["token"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._kinds: dict[str, Kind] = {}

    def create(self, manifest: Object) -> Object:
        """Make an object from its manifest, in the manifest's own version; returns it as it was stored."""
        made: Object = self.request("POST", self._path(manifest), manifest)
        self.created.append(made)
        return made

    def apply(self, manifest: Object) -> Object:
        """Make an object, or what is there of it, as its manifest says; returns it as it was stored."""
        path = f"{self._path(manifest, manifest['metadata']['name'])}?fieldManager=rig&force=true"
        made: Object = self.request("PATCH", path, manifest, content_type=APPLY)
        self.created.append(made)
        return made

    def _path(self, manifest: Object, name: str = "") -> str:
        version = manifest["apiVersion"]
        kind = replace(self.kind(manifest["kind"]), prefix=f"/apis/{version}" if "/" in version else f"/api/{version}")
        return kind.path(manifest["metadata"].get("namespace", "default"), name)

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        found: Object = self.request("GET", self.kind(kind).path(namespace, name))
        return found

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """The object, or None where there is none of that name."""
        try:
            return self.get(kind, name, namespace)
        except ApiError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str = "", **selectors: str) -> list[Object]:
        """A kind's objects, of all namespaces by default; selectors are ``labelSelector`` and ``fieldSelector``."""
        query = urllib.parse.urlencode(selectors)
        found: list[Object] = self.request("GET", f"{self.kind(kind).path(namespace)}?{query}")["items"]
        return found

    def patch(self, kind: str, name: str, change: Object, namespace: str = "default", subresource: str = "") -> Object:
        """Merge ``change`` into an object, or into its ``status`` where that is the subresource.

        Raises ValueError for conditions of a Node: the list would take the place of all that others have set, and what
        the merge has set stays the merge's own for every later test.
        """
        if kind == "Node" and "conditions" in change.get("status", {}):
            raise ValueError(f"merging conditions into node {name} would wipe those of others: apply them instead")
        path = self.kind(kind).path(namespace, name, subresource)
        changed: Object = self.request("PATCH", path, change, content_type=MERGE_PATCH)
        return changed

    def delete(self, kind: str, name: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """Ask for an object's deletion; ``grace`` is the time in seconds that a pod's containers have to end."""
        options: Object = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        self.request("DELETE", self.kind(kind).path(namespace, name), options)

    def remove(self, kind: str, name: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """The same of an object that may be gone, or go in this very moment."""
        try:
            self.delete(kind, name, namespace, grace=grace)
        except ApiError as error:
            if error.code != http.HTTPStatus.NOT_FOUND:
                raise

    def token(self, service_account: str, namespace: str = "default", *, pod: Object | None = None) -> str:
        """A service account's token, valid for an hour; bound to a pod, it carries the node as that pod's own does."""
        spec: Object = {"expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod"} | _name_and_uid(pod)
        path = self.kind("ServiceAccount").path(namespace, service_account, "token")
        answer = self.request(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        )
        return str(answer["status"]["token"])

    def kind(self, name: str) -> Kind:
        """Where a kind's objects are, in its preferred version; the core group comes first, then the server's order."""
        if name not in self._kinds:
            self._kinds = dict(self._discovered())
        if name not in self._kinds:
            raise RigError(f"the API server has no kind {name}")
        return self._kinds[name]

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        """One request; returns the answer's JSON, or an ApiError."""
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept, "Content-Type": content_type}
        connection = http.client.HTTPSConnection(self._host, context=self._tls, timeout=30)
        try:
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            code, content = answer.status, answer.read()
        finally:
            connection.close()
        return _checked(f"{method} {path}", code, content)

    def _discovered(self) -> Iterator[tuple[str, Kind]]:
        # Last in a dict wins: groups and versions come in order of preference, so the least preferred goes first.
        for root in ("/apis", "/api"):
            groups = self.request("GET", root, accept=DISCOVERY)["items"]
            for group in reversed(groups):
                for version in reversed(group["versions"]):
                    parts = [root, group["metadata"].get("name"), version["version"]]
                    yield from _kinds("/".join(filter(None, parts)), version["resources"])


def _kinds(prefix: str, resources: list[Object]) -> Iterator[tuple[str, Kind]]:
    for resource in resources:
        kind = Kind(prefix=prefix, plural=resource["resource"], namespaced=resource["scope"] == "Namespaced")
        yield resource["responseKind"]["kind"], kind


def _checked(request: str, code: int, content: bytes) -> Any:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = {"message": content.decode(errors="replace")}
    if code >= http.HTTPStatus.BAD_REQUEST:
        raise ApiError(request, code, answer)
    return answer


def _name_and_uid(item: Object) -> Object:
    return {key: item["metadata"][key] for key in ("name", "uid")}
