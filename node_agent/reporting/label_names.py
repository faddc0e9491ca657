"""Every label that the agent may write, and what its value means. Pure; the page of labels is made from it.

A part in angle brackets stands for many: a model, or a MIG profile.
"""

import re
from collections.abc import Mapping

_MIG_FACTS = {
    "multiprocessors": "multiprocessors",
    "slices.gi": "slices of its GPU instance",
    "slices.ci": "compute slices of its own",
    "engines.copy": "copy engines",
    "engines.decoder": "video decoders",
    "engines.encoder": "video encoders",
    "engines.jpeg": "JPEG engines",
    "engines.ofa": "optical flow engines",
}
_OF_A_PROFILE = {
    "count": "MIG devices of this profile that are offered by limits",
    "product": "the model and `-MIG-<profile>`, and `-SHARED` as above",
    "memory": "MiB of each",
    "replicas": "shares of each, 1 where it is not shared",
    "sharing-strategy": "`none`, `time-slicing` or `mps`",
}

MEANINGS: Mapping[str, str] = {
    "nvidia.com/gpu.present": "`true`: there is a GPU",
    "nvidia.com/gpu.count": "GPUs that the driver lists and that answer, whatever their health, mode or shares, but "
    "for those that are left to others; with strategy single on a node that is all cut: MIG devices",
    "nvidia.com/gpu.product": "the model; `-SHARED` at its end where all GPUs are shared under the name of whole ones; "
    "with strategy single on a node that is all cut `-MIG-<profile>`, or `-MIG-INVALID` where the profiles differ",
    "nvidia.com/gpu.memory": "MiB of each GPU, or MIG device as for the count",
    "nvidia.com/gpu.replicas": "shares of each, 1 where it is not shared, 0 where only its MIG devices can be used",
    "nvidia.com/gpu.sharing-strategy": "`none`, `time-slicing` or `mps`",
    "nvidia.com/gpu.family": "the architecture, such as `hopper`",
    "nvidia.com/gpu.compute.major": "the CUDA compute capability before its point",
    "nvidia.com/gpu.compute.minor": "and after it",
    "nvidia.com/gpu.mode": "`compute` or `graphics`, by the PCI class",
    "nvidia.com/gpu.machine": "what its maker calls the machine",
    "nvidia.com/gpu.clique": "`<cluster>.<clique>` of the NVLink domain over several nodes that all GPUs have joined",
    "nvidia.com/gpu.nvswitch.count": "NVSwitches on the PCI bus; from NVLink 5 on they are elsewhere",
    "nvidia.com/gpu.<model>.count": "with several models, instead of the product: GPUs of each",
    "nvidia.com/gpu.<model>.memory": "and MiB of each of them",
    "nvidia.com/mig.capable": "whether a GPU can be cut into MIG devices",
    "nvidia.com/mig.strategy": "`single` or `mixed`, where MIG devices are offered",
    **{
        f"nvidia.com/{of}.{fact}": f"{which}: {text}"
        for of, which in (("gpu", "strategy single, of each MIG device"), ("mig-<profile>", "strategy mixed, of each"))
        for fact, text in _MIG_FACTS.items()
    },
    **{f"nvidia.com/mig-<profile>.{fact}": f"strategy mixed: {text}" for fact, text in _OF_A_PROFILE.items()},
    "nvidia.com/mps.capable": "whether a GPU is shared by MPS",
    "nvidia.com/cuda.driver-version.full": "the driver's version",
    "nvidia.com/cuda.driver-version.major": "its first part",
    "nvidia.com/cuda.driver-version.minor": "its second part",
    "nvidia.com/cuda.driver-version.revision": "its third part, if it has one",
    "nvidia.com/cuda.driver.major": "the same under its old name",
    "nvidia.com/cuda.driver.minor": "the same under its old name",
    "nvidia.com/cuda.driver.rev": "the same under its old name",
    "nvidia.com/cuda.runtime-version.full": "the highest CUDA version that the driver serves",
    "nvidia.com/cuda.runtime-version.major": "its first part",
    "nvidia.com/cuda.runtime-version.minor": "its second part",
    "nvidia.com/cuda.runtime.major": "the same under its old name",
    "nvidia.com/cuda.runtime.minor": "the same under its old name",
    "nvidia.com/vgpu.present": "whether a GPU is a virtual one; it takes root to see that",
    "nvidia.com/vgpu.host-driver-version": "the version of the host's driver, under a virtual GPU",
    "nvidia.com/vgpu.host-driver-branch": "and its branch",
    "nvidia.com/gfd.timestamp": "when the labels last changed, in Unix seconds; a restart alone does not change it",
    "node-agent.gpu.nvidia.com/health": "the worst GPU's: `healthy`, `degraded`, `withdrawn`, `evicted`",
    "node-agent.gpu.nvidia.com/gpus-in-service": "GPUs of `gpu.count` that are given out: healthy and degraded ones",
    "node-agent.gpu.nvidia.com/nvlink.generation": "the NVLinks' generation, where GPUs are joined by them",
    "node-agent.gpu.nvidia.com/nvlink.island-size": "GPUs that NVLink joins, where all islands have one size",
    "amd.com/gpu.<fact>": "of AMD's GPUs: present, count, product, memory, replicas, sharing-strategy, mode, machine",
    "amd.com/gpu.product-name": "the model as AMD's node labeller writes it, words joined by `_`",
    "amd.com/gpu.device-id": "the PCI device id, as `74a1`",
    "amd.com/gpu.vram": "whole GiB of each GPU, as `192G`",
    "amd.com/gpu.cu-count": "compute units of each GPU",
    "amd.com/gpu.driver-version": "the version of the module amdgpu, where it has one",
    "amd.com/gpu.<model>.count": "with several models, instead of the product: GPUs of each",
    "amd.com/gpu.<model>.memory": "and MiB of each of them",
    "node-agent.gpu.amd.com/health": "as `node-agent.gpu.nvidia.com/health`",
    "node-agent.gpu.amd.com/gpus-in-service": "as `node-agent.gpu.nvidia.com/gpus-in-service`",
    "node-agent.gpu.amd.com/xgmi.island-size": "GPUs that xGMI joins, where all islands have one size",
}


def meaning(label: str) -> str | None:
    """What a label means; None for one that the agent never writes."""
    if label in MEANINGS:
        return MEANINGS[label]
    return next((text for form, text in MEANINGS.items() if "<" in form and _fits(form, label)), None)


def _fits(form: str, label: str) -> bool:
    return re.fullmatch(re.sub("<[a-z]+>", "[^/]+", re.escape(form)), label) is not None
