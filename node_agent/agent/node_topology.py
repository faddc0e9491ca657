"""Puts together what writes the node's NodeResourceTopology, for ``node_reports``."""

import asyncio
from collections.abc import Callable
from typing import Any

from node_agent.config.settings import Settings
from node_agent.hardware.numa import numa_nodes
from node_agent.kube.client import KubeClient
from node_agent.kube.resources import Object
from node_agent.kubelet import podresources
from node_agent.kubelet.configuration import alignment_in
from node_agent.kubelet.node_resources import node_resources
from node_agent.reporting.topology_object import Devices, topology_object
from node_agent.reporting.topology_writer import TopologyWriter


def topology_writer(
    settings: Settings, client: KubeClient, offered: Callable[[], Devices], signs: Callable[[], Any]
) -> TopologyWriter:
    """``offered`` are the devices that the agent offers now, ``signs`` differ when pods may have got or lost some."""

    async def wanted() -> Object:
        found = await node_resources(settings.paths.kubelet_dir / podresources.SOCKET)
        nodes = await asyncio.to_thread(numa_nodes, settings.paths.sysfs_root)
        alignment = await asyncio.to_thread(alignment_in, settings.kubelet_config)
        return topology_object(settings.node_name, nodes, found, offered=offered(), alignment=alignment)

    return TopologyWriter(client, settings.node_name, wanted, signs)
