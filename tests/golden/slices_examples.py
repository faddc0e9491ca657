"""The ResourceSlices of simulated nodes, as they are created in the API: ``tests/golden/slices`` holds what comes out.

``python -m tests.golden.slices_examples`` writes the files anew; look at the difference before it is committed.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from node_agent.dra.slices import Pool, PoolSettings, laid_out, pool_of
from node_agent.dra.taints import HELD, Effect, Taint
from node_agent.dra.writes import Attempt, plan, wanted_objects
from node_agent.kube.resources import RESOURCE_SLICES
from node_agent.model.gpu import GpuUuid
from tests.fakes.builders import taints_by_gpu
from tests.fakes.names import DRIVER
from tests.fakes.nodes import inventory_of

FOLDER = Path(__file__).parent / "slices"
PROFILES = ("h200-8", "gb200-4", "mixed-5", "gb10-1", "none")
NODE_UID = "6f0a5c3e-0000-4000-8000-000000000001"


def published(profile: str, settings: PoolSettings, taints: Mapping[GpuUuid, Iterable[Taint]] | None = None) -> Pool:
    return pool_of(laid_out(inventory_of(profile), settings), taints_by_gpu(taints or {}))


def tainted(profile: str, settings: PoolSettings) -> Pool:
    """The first GPU has reported an Xid, the third one is held by a pod with limits."""
    gpus = inventory_of(profile).gpus
    taints = {
        gpus[0].uuid: [Taint(key="gpu.nvidia.com/xid", effect=Effect.NO_SCHEDULE, value="79")],
        gpus[2].uuid: [Taint(key=f"gpu.nvidia.com/{HELD}", effect=Effect.NO_SCHEDULE)],
    }
    return published(profile, settings, taints)


GROUPS = PoolSettings(groups=True)
EXAMPLES: dict[str, Callable[[], Pool]] = {
    **{profile: partial(published, profile, PoolSettings()) for profile in PROFILES},
    **{f"{profile}-groups": partial(published, profile, GROUPS) for profile in PROFILES},
    "h200-8-groups-tainted": partial(tainted, "h200-8", GROUPS),
    "h200-8-shared": partial(published, "h200-8", PoolSettings(shares=lambda gpu: True)),
}


def written(example: str) -> str:
    """The slices of an example in the order in which they are created."""
    wanted = wanted_objects(EXAMPLES[example]().slices, "node-1", NODE_UID, DRIVER)
    head = {"apiVersion": RESOURCE_SLICES.api_version, "kind": RESOURCE_SLICES.kind}
    created = plan(wanted, {}, Attempt(), {}, {}).changed
    return json.dumps([{**head, **item} for item in created], indent=1) + "\n"


def update() -> None:
    for stale in FOLDER.glob("*.json"):
        stale.unlink()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for example in EXAMPLES:
        (FOLDER / f"{example}.json").write_text(written(example))


if __name__ == "__main__":
    update()
    sys.stdout.write(f"slices of {len(EXAMPLES)} nodes written to {FOLDER}\n")
