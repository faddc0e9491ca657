"""Simulated nodes: a stand-in for ``libnvidia-ml.so.1`` at its C functions, driven by YAML profiles.

``with install(SimulatedNode(load_profile("h200-8"))): ...`` and ``pynvml``, NVIDIA's own binding, talks to the
simulated node. ``profile`` holds what a node is made of, ``driver`` and ``gpu`` its state, ``library`` the C functions,
``faults`` and ``control`` break it from inside and outside the process, ``tree`` writes its files.
"""

from node_agent.hardware.simulated.install import install
from node_agent.hardware.simulated.node import SimulatedNode
from node_agent.hardware.simulated.profile import load_profile, profile_names

__all__ = ["SimulatedNode", "install", "load_profile", "profile_names"]
