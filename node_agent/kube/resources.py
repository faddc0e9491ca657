"""Where the API keeps each kind of object: the paths that ``client`` asks for."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

Object = dict[str, Any]
"""An API object, as its JSON."""


class Resource(Struct, frozen=True, kw_only=True):
    """A kind of object in one version of its API group; the core group is called ``""``."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What such an object has as ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def at(self, version: str) -> "Resource":
        """The same in another version of its group."""
        return replace(self, version=version)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of all of a namespace or (without one) of the cluster where there is no name.

        Raises:
            ValueError: a namespace is missing or too many, or a name could lead elsewhere.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} are in no namespace: {namespace!r} cannot be asked for")
        if name and not namespace and self.namespaced:
            raise ValueError(f"{self.plural} {name!r} is in a namespace, and none was given")
        within = ("namespaces", namespace) if namespace else ()
        parts = [*within, self.plural, *((name,) if name else ()), *((subresource,) if subresource else ())]
        return "/".join([self._root, *map(_segment, parts)])

    @property
    def _root(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


def _segment(part: str) -> str:
    if part in ("", ".", "..") or "/" in part:
        raise ValueError(f"{part!r} cannot be the name of an API object")
    return quote(part, safe=":")


def key_of(item: Mapping[str, Any]) -> str:
    """``namespace/name`` of an object, or its name where it is in none."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


RESOURCE_GROUP = "resource.k8s.io"
# Newest first. All that the agent uses of this group has the same form in the first two.
RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")

NODES = Resource(plural="nodes", kind="Node", namespaced=False)
PODS = Resource(plural="pods", kind="Pod")
EVENTS = Resource(plural="events", kind="Event", group="events.k8s.io")
RESOURCE_SLICES = Resource(plural="resourceslices", kind="ResourceSlice", group=RESOURCE_GROUP, namespaced=False)
RESOURCE_CLAIMS = Resource(plural="resourceclaims", kind="ResourceClaim", group=RESOURCE_GROUP)
DEVICE_CLASSES = Resource(plural="deviceclasses", kind="DeviceClass", group=RESOURCE_GROUP, namespaced=False)
DEVICE_TAINT_RULES = Resource(plural="devicetaintrules", kind="DeviceTaintRule", group=RESOURCE_GROUP, namespaced=False)
NODE_FEATURES = Resource(plural="nodefeatures", kind="NodeFeature", group="nfd.k8s-sigs.io", version="v1alpha1")
NODE_TOPOLOGIES = Resource(
    plural="noderesourcetopologies",
    kind="NodeResourceTopology",
    group="topology.node.k8s.io",
    version="v1alpha2",
    namespaced=False,
)
