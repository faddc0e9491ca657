"""Every attribute and capacity that a published device may have, and what it says. The page of attributes shows it.

``attributes`` gives devices these; a name without a domain is in the driver's.
"""

from collections.abc import Mapping

ATTRIBUTES: Mapping[str, str] = {
    "type": "`gpu`, `mig` or `group`",
    "uuid": "the driver's UUID; a MIG device that is yet to be made has none",
    "parentUUID": "the UUID of the GPU that a MIG device lies on",
    "profile": "the MIG profile, such as `1g.18gb`",
    "gpuCount": "GPUs of a group",
    "resource.kubernetes.io/pciBusID": "the place on the PCI bus, where its domain has four digits as in the standard",
    "resource.kubernetes.io/pcieRoot": "the PCIe root complex, to match with that of a NIC",
    "resource.kubernetes.io/numaNode": "the NUMA node",
    "productName": "the model",
    "brand": "the brand that the driver gives the model",
    "architecture": "the architecture, such as `Hopper`",
    "cudaComputeCapability": "the CUDA compute capability",
    "driverVersion": "the driver's version",
    "cudaDriverVersion": "the CUDA version that the driver serves",
    "nvlinkDomain": "equal for the GPUs of this node that NVLink joins: the UUID of the first of them",
    "clique": "equal for the GPUs of one NVLink domain over several nodes, as in the label `nvidia.com/gpu.clique`",
    "nvlinkGeneration": "the generation of its NVLinks",
    "nvlinkBandwidthMBps": "the sum of its NVLinks, in MB/s in one direction",
    "migCapable": "whether it can be cut into MIG devices",
    "eccEnabled": "whether ECC is on",
    "addressingMode": "how it addresses the memory of the host: `HMM`, `ATS` or `None`",
    "coherentMemory": "whether it shares the host's memory coherently, which is so with `ATS`",
    "powerLimitWatts": "the limit that is set, in watts",
    "deviceID": "the PCI device id",
    "minor": "the number of its device node",
    "serial": "the serial number of the board",
    "vbios": "the version of its VBIOS",
}

CAPACITIES: Mapping[str, str] = {
    "memory": "bytes of memory; of a group that of all its GPUs",
    "multiprocessors": "streaming multiprocessors; of a group those of all its GPUs",
    "cores": "percent of a GPU that several claims may share (`agent.devices.shareable`)",
    "copyEngines": "copy engines of a MIG device",
    "decoders": "video decoders of a MIG device",
    "encoders": "video encoders of a MIG device",
    "jpegEngines": "JPEG engines of a MIG device",
    "ofaEngines": "optical flow engines of a MIG device",
    "memorySlice<n>": "1 for each memory slice that a live MIG device takes of its GPU",
}
