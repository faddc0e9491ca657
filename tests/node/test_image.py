"""The image as the Dockerfile makes it: what is in it, and what is not.

That it serves pods is what nearly all tests of this folder show: they install the agent from it.
"""

import json
import tarfile
from collections.abc import Iterator

import pytest

from tests.node.rig import agent_image
from tests.node.rig.api import Object

pytestmark = pytest.mark.node

LARGEST = 250 * 1024 * 1024
LARGEST_OF_OUR_OWN = 10 * 1024 * 1024
UNWANTED = ("usr/bin/gcc", "usr/bin/cc", "usr/bin/pip", "opt/node-agent/bin/pip", "usr/bin/git")
LEFT_OVERS = ("var/lib/apt/lists/", "var/cache/apt/archives/", "root/.cache/", "tmp/")


def read(archive: tarfile.TarFile, descriptor: Object) -> bytes:
    blob = archive.extractfile(f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert blob is not None
    return blob.read()


def layers(archive: tarfile.TarFile, manifest: Object) -> Iterator[list[tarfile.TarInfo]]:
    """The files of each layer."""
    for layer in manifest["layers"]:
        blob = archive.extractfile(f"blobs/{layer['digest'].replace(':', '/')}")
        with tarfile.open(fileobj=blob) as content:
            yield list(content)


def test_the_image_is_small_and_has_no_compiler_installer_or_cache_in_it() -> None:
    with tarfile.open(agent_image.archive()) as opened:
        index = opened.extractfile("index.json")
        assert index is not None
        manifest = json.loads(read(opened, json.load(index)["manifests"][0]))
        config = json.loads(read(opened, manifest["config"]))["config"]
        content = list(layers(opened, manifest))
    assert (config["Entrypoint"], config["Cmd"]) == (["node-agent"], ["run"])
    assert config["Labels"]["org.opencontainers.image.title"] == "gpu-node-agent"

    named = [file.name.removeprefix("./") for layer in content for file in layer if not file.isdir()]
    assert "opt/node-agent/bin/node-agent" in named
    assert not set(UNWANTED) & set(named)
    assert [name for name in named if name.startswith(LEFT_OVERS)] == []
    sizes = [sum(file.size for file in layer) for layer in content]
    print(f"the image has {sum(sizes) / 1e6:.0f} MB, {sizes[-1] / 1e6:.1f} MB of them change with the agent")
    assert sum(sizes) < LARGEST
    assert sizes[-1] < LARGEST_OF_OUR_OWN, "an update of the agent brings its own code and nothing else"
