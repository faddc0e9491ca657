"""NVIDIA's GPUs through NVML, NVIDIA's management library, and its official binding ``pynvml``.

``provider`` is what the agent uses: it puts every call on a thread. Underneath, plain blocking functions by subject:
``scan`` which GPUs there are · ``links`` how they reach each other · ``events`` what the driver reports ·
``fabric`` NVLink domains over nodes · ``profiles`` and ``partitions`` MIG · ``readings`` a GPU's state. They share one
``session`` (init, handles, a driver that went away) whose every call goes through ``translate``, the one place that
knows NVML's error codes and texts.
"""

import pynvml

from node_agent.hardware.nvml.binding import refuse_look_alike

refuse_look_alike(pynvml)
