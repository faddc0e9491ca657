"""What the vendor of the settings comes to in concrete classes, for ``build`` and for commands that need no agent."""

import os

from node_agent.cdi.hooks import find_hook_program
from node_agent.cdi.host import AmdHost, Host, NvidiaHost
from node_agent.cdi.nodes import Stat, Wanted
from node_agent.cdi.roots import DriverRoots
from node_agent.config.settings import Settings
from node_agent.hardware.amd.provider import AmdProvider
from node_agent.hardware.nvml.provider import NvmlProvider
from node_agent.model.vendor import AMD

VendorsProvider = AmdProvider | NvmlProvider


def provider_of(settings: Settings) -> VendorsProvider:
    """Who is asked about the node's GPUs; an async context manager."""
    sysfs = settings.paths.sysfs_root
    return AmdProvider(sysfs) if settings.vendor == AMD else NvmlProvider(sysfs)


def host_of(settings: Settings, stat: Stat = os.stat) -> Host:
    """What of the host containers need; ``stat`` looks at device nodes."""
    roots = driver_roots(settings)
    if settings.vendor == AMD:
        return AmdHost(roots=roots, stat=stat)
    return NvidiaHost(
        roots=roots,
        find_hook=lambda: find_hook_program(roots, settings.cdi_hook_path),
        stat=stat,
        wanted=wanted_nodes(settings),
    )


def wanted_nodes(settings: Settings) -> Wanted:
    """The device nodes that every container with a GPU gets."""
    return Wanted().with_channels(settings.imex_channels, required=settings.imex_required)


def driver_roots(settings: Settings) -> DriverRoots:
    """Where the driver and its device nodes are, for the agent and on the host."""
    return DriverRoots(
        driver=settings.container_driver_root,
        host_driver=settings.driver_root,
        dev=settings.container_dev_root,
        host_dev=settings.dev_root,
        sysfs=settings.paths.sysfs_root,
        proc=settings.paths.proc_root,
    )
