"""What the configuration file may say: the form of NVIDIA's device plugin file, version v1, and our section ``agent``.

NVIDIA's keys keep their names, types and ranges, so that an existing file is read as it is. Three defaults differ:
``deviceListStrategy`` is cdi-cri, since a pod can forge the variable of envvar; ``failOnInitError`` is false, since
the agent waits for the driver and says so; ``containerDriverRoot`` is the driver root itself, right on the host and to
be set where the agent runs in a container. All values are plain: ``settings`` makes of them what the agent uses, and
``rules`` checks what these types cannot say. A description completes "expected …" in a message.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from node_agent.config.durations import PATTERN
from node_agent.config.quantities import PATTERN as QUANTITY

# What an application does to itself; NVIDIA's device plugin ignores the same.
USUAL_XIDS = (13, 31, 43, 45, 68, 109)

_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

Place = Annotated[str, Meta(pattern="^/", description="an absolute path")]
PlaceOrNone = Annotated[str, Meta(pattern="^(/|$)", description="an absolute path, or nothing")]
Text = Annotated[str, Meta(min_length=1, description="some text")]
Namespace = Annotated[str, Meta(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="the name of a namespace")]
Xids = Annotated[
    Literal["all"] | tuple[Annotated[int, Meta(ge=0, description="the number of an Xid")], ...],
    Meta(description="all, or a list of numbers of Xids"),
]
Interval = Annotated[
    Annotated[str, Meta(pattern=PATTERN)] | Annotated[float, Meta(ge=0)],
    Meta(description="a duration from 1s to 1h, such as 30s or 1m30s (a bare number counts seconds)"),
]
SleepInterval = Annotated[
    Annotated[str, Meta(pattern=f"{PATTERN}|^infinite$")] | Annotated[float, Meta(ge=0)],
    Meta(description="a duration such as 60s, or infinite (a bare number counts nanoseconds)"),
]
Memory = Annotated[
    Annotated[int, Meta(ge=1)] | Annotated[str, Meta(pattern=QUANTITY)],
    Meta(description="an amount of memory such as 20Gi or 500M (a bare number counts bytes)"),
]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]
SharedDevice = Annotated[
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(pattern=rf"^([0-9]+(:[0-9]+)?|(GPU|MIG)-{_UUID}|MIG-GPU-{_UUID}/[0-9]+/[0-9]+)$")],
    Meta(description='an index such as 0 or "0:1", or the UUID of a GPU or MIG device'),
]


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A part of the file, as all parts are: no key but these, and none that must be there unless it has no default."""


class PluginFlags(Section, frozen=True, kw_only=True):
    """``flags.plugin``: how containers get their devices."""

    pass_device_specs: bool = False
    device_list_strategy: Annotated[
        ListStrategy | Annotated[tuple[ListStrategy, ...], Meta(min_length=1)],
        Meta(description="envvar, volume-mounts, cdi-annotations or cdi-cri, or a list of these"),
    ] = "cdi-cri"
    device_id_strategy: Literal["uuid", "index"] = field(name="deviceIDStrategy", default="uuid")
    cdi_annotation_prefix: Text = "cdi.k8s.io/"
    nvidia_ctk_path: PlaceOrNone = field(name="nvidiaCTKPath", default="")
    container_driver_root: PlaceOrNone = ""
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"


class LabelFlags(Section, frozen=True, kw_only=True):
    """``flags.gfd``: GPU Feature Discovery's own."""

    oneshot: bool = False
    no_timestamp: bool = False
    sleep_interval: SleepInterval = "60s"
    output_file: str = "/etc/kubernetes/node-feature-discovery/features.d/gfd"
    machine_type_file: str = "/sys/class/dmi/id/product_name"


class Flags(Section, frozen=True, kw_only=True):
    mig_strategy: Literal["none", "single", "mixed"] = "none"
    fail_on_init_error: bool = False
    mps_root: PlaceOrNone = ""
    nvidia_driver_root: Place = "/"
    nvidia_dev_root: PlaceOrNone = ""
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    use_node_feature_api: bool = field(name="useNodeFeatureAPI", default=True)
    device_discovery_strategy: Literal["auto", "nvml", "tegra", "vfio"] = "auto"
    plugin: PluginFlags = PluginFlags()
    gfd: LabelFlags = LabelFlags()


class ResourceRule(Section, frozen=True, kw_only=True):
    """Which devices are offered under which name; in ``pattern`` only ``*`` is special."""

    pattern: Text
    name: Text


class Resources(Section, frozen=True, kw_only=True):
    gpus: tuple[ResourceRule, ...] = ()
    mig: tuple[ResourceRule, ...] = ()


class SharedResource(Section, frozen=True, kw_only=True):
    """A resource whose devices are each offered ``replicas`` times."""

    name: Text
    replicas: Annotated[int, Meta(ge=2, description="a whole number of at least 2")]
    rename: str = ""
    devices: Annotated[
        Literal["all"] | Annotated[int, Meta(ge=1)] | Annotated[tuple[SharedDevice, ...], Meta(min_length=1)],
        Meta(description="all, a number of at least 1, or a list of indices and UUIDs"),
    ] = "all"


class SharedResources(Section, frozen=True, kw_only=True):
    """``sharing.timeSlicing`` and ``sharing.mps``; an unset ``failRequestsGreaterThanOne`` is true for MPS only."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: Annotated[tuple[SharedResource, ...], Meta(min_length=1, description="a list of at least one resource")]


class Sharing(Section, frozen=True, kw_only=True):
    time_slicing: SharedResources | None = None
    mps: SharedResources | None = None


class Imex(Section, frozen=True, kw_only=True):
    channel_ids: Annotated[
        tuple[Literal[0], ...], Meta(max_length=1, description="[] or [0]: there is one channel per node")
    ] = field(name="channelIDs", default=())
    required: bool = False


class AgentPaths(Section, frozen=True, kw_only=True):
    """``agent.paths``: where things are, as the agent sees them. ``devRoot`` is the folder in which ``dev`` lies."""

    kubelet_dir: Place = "/var/lib/kubelet"
    cdi_dir: Place = "/var/run/cdi"
    state_dir: Place = "/var/lib/gpu-node-agent"
    run_dir: Place = "/run/gpu-node-agent"
    sysfs_root: Place = "/sys"
    proc_root: Place = "/proc"
    dev_root: Place = "/"


class AgentLog(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class AgentHttp(Section, frozen=True, kw_only=True):
    """``agent.http``: a TCP address besides the socket, for probes and metrics; none where it is empty.

    With ``page`` off the page, which names pods, is on the agent's own socket only.
    """

    address: Annotated[
        str,
        Meta(
            pattern=r"^((\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]*):[0-9]{1,5})?$",
            description='a host, a colon and a port up to 65535, such as ":9400", "127.0.0.1:9400" or "[::1]:9400"',
        ),
    ] = ""
    page: bool = True


# Every reason that a rule may be about: all but Xids, which go by number, and that nobody has looked yet.
CauseName = Literal[
    "gpu-lost",
    "query-failed",
    "recovery-needed",
    "ecc",
    "row-remap-failed",
    "retired-pages",
    "reset-needed",
    "nvlink",
    "fabric",
    "fabric-joining",
    "pcie-degraded",
    "thermal-throttling",
    "power-throttling",
    "device-node-missing",
    "mps-daemon-dead",
    "events-failed",
    "not-monitored",
]


class AgentHealthRule(Section, frozen=True, kw_only=True):
    """An item of ``agent.health.rules``: what Xids or causes cost, after how many within what time, and what ends it.

    The last rule that covers a trouble decides; a key that is not there leaves to the rules before it.
    """

    xids: Xids = ()
    causes: tuple[CauseName, ...] = ()
    action: Literal["ignore", "count", "degrade", "withdraw", "evict"] | None = None
    cleared_by: Literal["probe", "recovery", "reset", "operator"] | None = None
    after: Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")] = 1
    within: Interval = "10m"


class AgentHealth(Section, frozen=True, kw_only=True):
    """``agent.health``: an Xid in ``enabledXids`` withdraws its GPU even where ``ignoredXids`` has it.

    The catalogue of Xids says what each costs. ``rules`` lie over it, and over those what is ignored besides the usual.
    """

    ignored_xids: Xids = USUAL_XIDS
    enabled_xids: Xids = ()
    probe_interval: Interval = "5s"
    rules: tuple[AgentHealthRule, ...] = ()


GpuWord = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[str, Meta(min_length=1)],
    Meta(description="an index, a UUID, a name or a product"),
]


class AgentDevices(Section, frozen=True, kw_only=True):
    """``agent.devices``: GPUs by UUID, index, name, or product with ``*`` for any part.

    Those in ``exclude`` are left to others: they are not offered, shared or cut, and no label counts them. Those in
    ``shareable`` may be had by several claims at once.
    """

    exclude: tuple[GpuWord, ...] = ()
    shareable: tuple[GpuWord, ...] = ()


class SharingRule(Section, frozen=True, kw_only=True):
    """Which GPUs are shared, and how; ``devices`` as in ``agent.devices``, all of them where it is left out.

    The shares are offered as ``resource``, or else under the name that their GPU would have as a whole. An unset
    ``failRequestsGreaterThanOne`` is true for MPS only, as in ``sharing``.
    """

    devices: Annotated[
        tuple[GpuWord, ...], Meta(min_length=1, description="a list of at least one index, UUID, name or product")
    ] = ("*",)
    strategy: Literal["time-slicing", "mps"] = "time-slicing"
    replicas: Annotated[int, Meta(ge=1, description="a whole number of at least 1 with mps, 2 with time-slicing")]
    resource: str = ""
    fail_requests_greater_than_one: bool | None = None
    time_slice: Literal["Default", "Short", "Medium", "Long"] = "Default"
    memory_per_share: Memory | None = None
    thread_percentage_per_share: (
        Annotated[int, Meta(ge=1, le=100, description="a whole number from 1 to 100")] | None
    ) = None
    overcommit: bool = False
    multi_user: bool = False


class AgentSharing(Section, frozen=True, kw_only=True):
    """``agent.sharing``: these rules go before those of ``sharing``; of several that name a GPU the first holds.

    ``placement`` says which shares are given to a pod that asks for more than one; left out, it is what
    ``flags.plugin.sharedDevicesAllocationPolicy`` says: distributed is spread.
    """

    placement: Literal["spread", "packed", "distinct"] | None = None
    rules: tuple[SharingRule, ...] = ()


class AgentFrontDoors(Section, frozen=True, kw_only=True):
    """``agent.frontDoors``: how pods may ask for GPUs; ``auto`` means where the agent can reach the API server.

    ``computeDomains``: NVIDIA's ComputeDomains are served, in the place of NVIDIA's plugin for them. Their daemons get
    every GPU, and their claims are let in from ``computeDomainNamespaces`` alone, where NVIDIA's controller makes them.
    """

    device_plugin: bool = True
    dra: Literal["auto"] | bool = "auto"
    compute_domains: bool = False
    compute_domain_namespaces: tuple[Namespace, ...] = ("dra-driver-nvidia-gpu", "nvidia-dra-driver-gpu")


class AgentDra(Section, frozen=True, kw_only=True):
    """``agent.dra``: claims. ``groups`` publishes close GPUs as devices of their own.

    ``metadata`` gives pods a file that says which devices they have, at the cost of a write at each preparation.
    ``enforceLimits``: whether claims are held by MPS to the part of a shareable GPU that they take; ``auto`` where that
    can be done, ``always`` refuses claims where it cannot, ``never`` leaves it to the claims' own configuration.
    """

    groups: bool = False
    metadata: bool = False
    enforce_limits: Literal["auto", "always", "never"] = "auto"


_PROFILE = r"^([0-9]+c\.)?[0-9]+g\.[0-9]+gb([+-][a-z]+(\.[a-z]+)*)?$"
MigProfileName = Annotated[str, Meta(pattern=_PROFILE, description="a MIG profile, such as 3g.71gb")]


class AgentMig(Section, frozen=True, kw_only=True):
    """``agent.mig``: who decides how GPUs are cut.

    GPUs in ``onDemand`` (by UUID, index, name or product) are cut by claims: a prepared claim makes its MIG device, and
    the end of the claim removes it. ``sweep`` removes what lies there that no claim has, unless processes run on it.

    The others follow the layout that the node's label nvidia.com/mig.config names, or else ``config``; ``configFile``
    has the layouts in the form of mig-parted, by default there are the usual ones of the node's GPUs. ``layouts``:
    ``auto`` leaves it to NVIDIA's MIG manager where that runs, ``always`` does not, and ``never`` cuts nothing.
    ``whenInUse``: what is in use and has to go is waited for, or the layout is refused. ``defragment`` says whether
    idle partitions are merged so that there is room for one of each profile in ``keepRoomFor``.
    """

    on_demand: tuple[GpuWord, ...] = ()
    sweep: bool = True
    layouts: Literal["auto", "always", "never"] = "auto"
    config: str = ""
    config_file: PlaceOrNone = ""
    when_in_use: Literal["wait", "refuse"] = "wait"
    defragment: Literal["off", "advise", "act"] = "advise"
    keep_room_for: tuple[MigProfileName, ...] = ()


class AgentGpuOperator(Section, frozen=True, kw_only=True):
    """``agent.gpuOperator``: what NVIDIA's GPU Operator has to have said in ``validations`` before GPUs are looked at.

    Nothing where ``waitFor`` is empty. The folder is the host's, and has to be mounted; nothing is written there.
    """

    validations: Place = "/run/nvidia/validations"
    wait_for: tuple[Literal["driver", "toolkit"], ...] = ()


class AgentNodeReports(Section, frozen=True, kw_only=True):
    """``agent.nodeReports``: what is told of the node, where the agent can reach the API server.

    ``topology`` keeps a NodeResourceTopology; how the kubelet aligns is read from its file ``kubeletConfig``.
    """

    condition: bool = True
    events: bool = True
    topology: bool = False
    kubelet_config: Place = "/var/lib/kubelet/config.yaml"


class AgentLabels(Section, frozen=True, kw_only=True):
    """``agent.labels``: where the labels that describe the GPUs are written.

    ``auto`` is the NodeFeature object where the cluster has that kind and ``flags.useNodeFeatureAPI`` is set, else the
    feature file where Node Feature Discovery's folder is there, else the Node itself. ``takeOver``: labels that another
    program has set are written all the same.
    """

    writer: Literal["auto", "node-feature", "nfd-file", "node", "none"] = "auto"
    take_over: bool = False


class AgentMetrics(Section, frozen=True, kw_only=True):
    """``agent.metrics``: ``names`` are those of DCGM-exporter up to 4.8 (legacy) or from 4.9 on (current).

    With ``perShare`` a device that several containers have has its series once for each of them, told apart by the
    label ``vgpu``; their sum is then no sum of the devices.
    """

    names: Literal["legacy", "current"] = "legacy"
    per_share: bool = False


class AgentSection(Section, frozen=True, kw_only=True):
    """``agent``: what NVIDIA's file has no word for.

    ``vendor``: whose GPUs the node has; ``auto`` is AMD where amdgpu drives GPUs and there are none of NVIDIA's.
    """

    vendor: Literal["auto", "nvidia", "amd"] = "auto"
    node_name: str = ""
    pod_name: str = ""
    rescan_interval: Interval = "30s"
    registration: Literal["socket", "watcher", "auto"] = "auto"
    paths: AgentPaths = AgentPaths()
    log: AgentLog = AgentLog()
    http: AgentHttp = AgentHttp()
    health: AgentHealth = AgentHealth()
    devices: AgentDevices = AgentDevices()
    sharing: AgentSharing = AgentSharing()
    kubeconfig: PlaceOrNone = ""
    front_doors: AgentFrontDoors = AgentFrontDoors()
    dra: AgentDra = AgentDra()
    mig: AgentMig = AgentMig()
    node_reports: AgentNodeReports = AgentNodeReports()
    gpu_operator: AgentGpuOperator = AgentGpuOperator()
    labels: AgentLabels = AgentLabels()
    metrics: AgentMetrics = AgentMetrics()


class File(Section, frozen=True, kw_only=True):
    """The whole file."""

    version: Literal["v1"] = "v1"
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()
    agent: AgentSection = AgentSection()
