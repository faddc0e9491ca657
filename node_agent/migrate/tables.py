"""What becomes of each key of NVIDIA's charts. Data only: ``documents`` walks through values by them.

The keys are those of device plugin 0.20, GPU Operator 26.7 (whose ClusterPolicy has the same ones in its spec),
DCGM-exporter 4.8 and the DRA driver 0.5, and of the releases before as far as they are known.
"""

from collections.abc import Iterable, Mapping

from node_agent.migrate import readers
from node_agent.migrate.keys import Chart, Key, Reader

_OWN = "the agent's own manifests have theirs"
_GDR = "GDRCopy devices are not offered yet"
_GDS = "GPUDirect Storage devices are not offered yet"
_MOFED = "InfiniBand devices are not offered yet"
_DOMAINS = "the agent serves no ComputeDomains: leave NVIDIA's driver to them, with its GPUs switched off"
_SERVED = "served without a gate"
_DRIVER = "driver, toolkit and what belongs to them stay the operator's"
_KUBELET = "where the kubelet's folder is: agent.paths.kubeletDir, and the DaemonSet's mounts"
_MONITOR = "the PodMonitor of the component metrics has its own"
_VM = "GPUs for virtual machines stay the operator's"
_CONFIG_MAP = "a ConfigMap whose data are not here: give it as a file, too (kubectl get configmap NAME -o yaml)"
_SWITCH = "switch it off where the agent is: migration.md has the order"

_IMAGE_KEYS = "repository image version imagePullPolicy imagePullSecrets env args"
_DRIVER_KEYS = (
    f"{_IMAGE_KEYS} nvidiaDriverCRD useNvidiaDriverCRD useOpenKernelModules kernelModuleType usePrecompiled "
    "startupProbe livenessProbe readinessProbe rdma upgradePolicy manager resources repoConfig certConfig secretEnv "
    "licensingConfig virtualTopology kernelModuleConfig hostNetwork"
)
_OPERATOR_KEYS = (
    "operator platform toolkit cdi validator nodeStatusExporter nfd node-feature-discovery psa psp ccManager "
    "extraObjects"
)
_VM_KEYS = (
    "sandboxWorkloads sandboxDevicePlugin kataSandboxDevicePlugin kataManager vgpuManager vgpuDeviceManager vfioManager"
)


def _becomes(path: str, what: str, read: Reader | None = None) -> Key:
    return Key(path=path, fate="configuration", what=what, read=read or readers.setting(what))


def _laid(path: str, what: str, read: Reader | None = None) -> Key:
    return Key(path=path, fate="manifest", what=what, read=read or readers.pod(what))


def _needless(why: str, *paths: str) -> list[Key]:
    return [Key(path=path, fate="not needed", what=why) for path in paths]


def _lacking(why: str, *paths: str) -> list[Key]:
    return [Key(path=path, fate="no equal", what=why) for path in paths]


def _staying(why: str, *paths: str) -> list[Key]:
    return [Key(path=path, fate="stays", what=why) for path in paths]


def _open(why: str, *paths: str, read: Reader | None = None) -> list[Key]:
    return [Key(path=path, fate="to decide", what=why, read=read) for path in paths]


def _below(prefix: str, names: str) -> list[str]:
    return [f"{prefix}{name}" for name in names.split()]


def _scheduling(prefix: str = "") -> list[Key]:
    """Where the pods run, and how."""
    return [
        _laid(f"{prefix}nodeSelector", "spec.nodeSelector"),
        _laid(f"{prefix}affinity", "spec.affinity"),
        _laid(f"{prefix}priorityClassName", "spec.priorityClassName"),
        _laid(f"{prefix}podAnnotations", "metadata.annotations"),
        *_needless("the agent tolerates every taint", f"{prefix}tolerations"),
        *_needless(_OWN, *_below(prefix, "updateStrategy podSecurityContext securityContext resources")),
    ]


def _installed(*more: str) -> list[Key]:
    """How a chart names and gets what it installs."""
    names = (
        "nameOverride fullnameOverride namespaceOverride selectorLabelsOverride allowDefaultNamespace serviceAccount"
    )
    return [
        *_needless(_OWN, *_below("", names), *_below("image.", "repository pullPolicy tag"), *more),
        *_open("where your mirror wants it, for the agent's own image", "imagePullSecrets"),
    ]


def _operand(name: str, *more: Key, env: Reader = readers.variables) -> list[Key]:
    """A part of GPU Operator that the agent takes the place of."""
    images = "repository image version imagePullPolicy resources hostPID hostNetwork"
    return [
        *_needless(_OWN, *_below(f"{name}.", images)),
        *_open("where your mirror wants it, for the agent's own image", f"{name}.imagePullSecrets"),
        *_open("arguments of another program", f"{name}.args"),
        _becomes(f"{name}.env", "the keys that these variables stand for", env),
        *more,
    ]


def _config_map(prefix: str, data: str) -> list[Key]:
    """Where the device plugin has its named configurations."""
    return [
        _becomes(f"{prefix}.{data}", "the named configurations", readers.config_map),
        _laid(f"{prefix}.default", "variable DEFAULT_CONFIG", readers.pod_variable("DEFAULT_CONFIG")),
        *_open(_CONFIG_MAP, f"{prefix}.name"),
    ]


def _chart(name: str, title: str, *keys: Key | Iterable[Key]) -> Chart:
    listed = [one for given in keys for one in ([given] if isinstance(given, Key) else given)]
    found = {key.path: key for key in listed}
    assert len(found) == len(listed), "a key has one fate"
    return Chart(name=name, title=title, keys=found)


DEVICE_PLUGIN = _chart(
    "device-plugin",
    "NVIDIA's device plugin, with GPU Feature Discovery and MPS (chart nvidia-device-plugin)",
    _config_map("config", "map"),
    _laid("config.fallbackStrategies", "variable FALLBACK_STRATEGIES", readers.pod_variable("FALLBACK_STRATEGIES")),
    _becomes("migStrategy", "flags.migStrategy"),
    _becomes("deviceListStrategy", "flags.plugin.deviceListStrategy", readers.words("flags.plugin.deviceListStrategy")),
    _becomes("deviceIDStrategy", "flags.plugin.deviceIDStrategy"),
    _becomes("deviceDiscoveryStrategy", "flags.deviceDiscoveryStrategy"),
    _becomes("nvidiaDriverRoot", "flags.nvidiaDriverRoot, and the DaemonSet's mount", readers.driver_root),
    _becomes("nvidiaDevRoot", "flags.nvidiaDevRoot"),
    _becomes("cdi.nvidiaHookPath", "flags.plugin.nvidiaCTKPath"),
    _needless("device nodes reach a container through CDI, whose permissions the runtime sets", "compatWithCPUManager"),
    _needless("the agent waits for the driver, and its status says so", "failOnInitError"),
    _lacking(_GDR, "gdrcopyEnabled"),
    _lacking(_GDS, "gdsEnabled"),
    _lacking(_MOFED, "mofedEnabled"),
    _lacking("the agent makes CDI specs of its own", "cdi.featureFlags"),
    _open("the component mps has its place", "mps.root", read=readers.mps_root),
    _needless("the component mps has it", "mps.enableHostPID"),
    _needless("the agent is in no host's network", *_below("", "mps.enableHostNetwork gfd.enableHostNetwork")),
    _needless("the agent is in no host's network", "devicePlugin.enableHostNetwork"),
    _becomes(
        "devicePlugin.enabled", "agent.frontDoors.devicePlugin", readers.off("agent.frontDoors.devicePlugin", False)
    ),
    _becomes("devicePlugin.containers.main.env", "the keys that these variables stand for", readers.variables),
    _becomes("gfd.enabled", "agent.labels.writer", readers.off("agent.labels.writer", "none")),
    _becomes("gfd.noTimestamp", "flags.gfd.noTimestamp"),
    _needless("labels are written when something changes", "gfd.sleepInterval"),
    _needless(_OWN, *_below("gfd.", "nameOverride namespaceOverride securityContext")),
    _staying("Node Feature Discovery stays, where others need it", "nfd"),
    _laid("runtimeClassName", "spec.runtimeClassName"),
    _installed("componentSelectorLabels"),
    _scheduling(),
)

GPU_OPERATOR = _chart(
    "gpu-operator",
    "GPU Operator (chart gpu-operator, or a ClusterPolicy)",
    _becomes("mig.strategy", "flags.migStrategy"),
    _operand(
        "devicePlugin",
        _becomes(
            "devicePlugin.enabled", "agent.frontDoors.devicePlugin", readers.off("agent.frontDoors.devicePlugin", False)
        ),
        *_config_map("devicePlugin.config", "data"),
        *_needless("kustomize makes the ConfigMap", "devicePlugin.config.create"),
        *_open("the component mps has its place", "devicePlugin.mps.root", read=readers.mps_root),
    ),
    _operand("gfd", _becomes("gfd.enabled", "agent.labels.writer", readers.off("agent.labels.writer", "none"))),
    _operand(
        "migManager",
        _becomes("migManager.enabled", "agent.mig.layouts", readers.off("agent.mig.layouts", "never")),
        _becomes("migManager.config.default", "agent.mig.config"),
        _becomes("migManager.config.data", "agent.mig.configFile, and its ConfigMap", readers.config_map),
        *_open(_CONFIG_MAP, "migManager.config.name"),
        *_needless("kustomize makes the ConfigMap", "migManager.config.create"),
        *_needless("nothing has to be stopped: what is in use is waited for", "migManager.gpuClientsConfig"),
    ),
    _operand(
        "dcgmExporter",
        *_needless(_SWITCH, "dcgmExporter.enabled"),
        _becomes("dcgmExporter.config.data", "agent.metrics.names", readers.metrics),
        *_open(_CONFIG_MAP, "dcgmExporter.config.name"),
        *_needless("the agent needs no list of metrics", "dcgmExporter.config.create"),
        _laid("dcgmExporter.serviceMonitor.enabled", "component metrics of deploy/daemonset", readers.monitoring),
        *_open(_MONITOR, *_below("dcgmExporter.serviceMonitor.", "interval honorLabels additionalLabels relabelings")),
        *_lacking("there is no Service: Prometheus finds the pods", "dcgmExporter.service"),
        *_lacking("series name pods and claims, and no job of another scheduler", "dcgmExporter.hpcJobMapping"),
    ),
    _needless("the agent needs no DCGM", "dcgm"),
    _becomes("driver.enabled", "agent.gpuOperator.waitFor, flags.nvidiaDriverRoot", readers.operator_driver),
    _open("flags.nvidiaDriverRoot", "hostPaths.driverInstallDir", read=readers.install_folder),
    _laid("daemonsets.labels", "metadata.labels"),
    _laid("daemonsets.annotations", "metadata.annotations"),
    _laid("daemonsets.priorityClassName", "spec.priorityClassName"),
    _needless("the agent tolerates every taint", "daemonsets.tolerations"),
    _needless(_OWN, *_below("daemonsets.", "updateStrategy rollingUpdate")),
    _lacking(_GDS, "gds.enabled"),
    _lacking(_GDR, "gdrcopy.enabled"),
    _staying(_DRIVER, *_below("gds.", _IMAGE_KEYS), *_below("gdrcopy.", _IMAGE_KEYS), *_below("driver.", _DRIVER_KEYS)),
    _staying(_DRIVER, *_below("", _OPERATOR_KEYS), "hostPaths.rootFS"),
    _staying(_VM, *_below("", _VM_KEYS)),
)

DCGM_EXPORTER = _chart(
    "dcgm-exporter",
    "DCGM-exporter (chart dcgm-exporter)",
    _becomes("customMetrics", "agent.metrics.names", readers.metrics),
    _becomes("extraEnv", "the keys that these variables stand for", readers.variables),
    _laid("serviceMonitor.enabled", "component metrics of deploy/daemonset", readers.monitoring),
    _open(_MONITOR, *_below("serviceMonitor.", "apiVersion interval honorLabels additionalLabels relabelings")),
    _open("the DaemonSet serves :9400", *_below("service.", "port address"), read=readers.address),
    _lacking(
        "there is no Service: Prometheus finds the pods",
        *_below("service.", "enable type internalTrafficPolicy clusterIP annotations"),
    ),
    _open("arguments of another program: a list of metrics in a file can be given as a file, too", "arguments"),
    _open("files of another program", *_below("", "extraHostVolumes extraConfigMapVolumes extraVolumeMounts")),
    _lacking(
        "the agent speaks plain HTTP, without passwords: keep its port to the cluster by a NetworkPolicy",
        "tlsServerConfig",
        "basicAuth",
    ),
    _lacking("series name the pod; its labels are joined in a query", "kubernetes.enablePodLabels"),
    _needless("the agent reads no pods of other nodes", "kubernetes.rbac"),
    _open(_KUBELET, "kubeletPath"),
    _lacking("bring your own", "networkPolicy"),
    _needless(_OWN, "rollingUpdate"),
    _laid("runtimeClassName", "spec.runtimeClassName"),
    _laid("podLabels", "metadata.labels"),
    _installed(),
    _scheduling(),
)

DRA_DRIVER = _chart(
    "dra-driver",
    "NVIDIA's DRA driver (chart nvidia-dra-driver-gpu)",
    _becomes("resources.gpus.enabled", "agent.frontDoors.dra", readers.off("agent.frontDoors.dra", False)),
    _lacking(_DOMAINS, "resources.computeDomains.enabled", "resources.computeDomains.imex", "controller"),
    _becomes("nvidiaDriverRoot", "flags.nvidiaDriverRoot, and the DaemonSet's mount", readers.driver_root),
    _becomes("nvidiaCDIHookPath", "flags.plugin.nvidiaCTKPath"),
    _becomes("consumableShares", "agent.devices.shareable", readers.shares),
    _becomes("featureGates.DynamicMIG", "agent.mig.onDemand", readers.on("agent.mig.onDemand", ["*"])),
    _becomes("featureGates.DeviceMetadata", "agent.dra.metadata"),
    _needless(_SERVED, *_below("featureGates.", "TimeSlicingSettings NVMLDeviceHealthCheck ConsumableShares")),
    _open("claims that ask for MPS need the component mps of deploy/daemonset", "featureGates.MPSSupport"),
    _lacking("claims for virtual machines are not served", "featureGates.PassthroughSupport"),
    _lacking("numaNode is a number", "featureGates.DRAListTypeAttributes"),
    _lacking("partitions of the Fabric Manager are not served", "featureGates.FabricManagerPartitioning"),
    _lacking(
        _DOMAINS,
        *_below(
            "featureGates.",
            "IMEXDaemonsWithDNSNames ComputeDomainCliques CrashOnNVLinkFabricErrors HostManagedIMEXDaemon",
        ),
    ),
    _needless("limits and claims are served from one ledger", "gpuResourcesEnabledOverride"),
    _needless("the agent speaks resource.k8s.io/v1", "resourceApiVersion"),
    _open("agent.log.level has words in the place of numbers", "logVerbosity"),
    _lacking("a claim's configuration is checked when it is prepared", "webhook"),
    _lacking("for simulated nodes of another kind", "altProcDevices", "maskNvidiaDriverParams"),
    _scheduling("kubeletPlugin."),
    _needless("one program, one container, one port", *_below("kubeletPlugin.", "containers metrics")),
    _needless("nvidia.com/gpu.clique is among the labels", "kubeletPlugin.gpuCliqueLabelEnabled"),
    _open(_KUBELET, *_below("kubeletPlugin.", "kubeletRegistrarDirectoryPath kubeletPluginsDirectoryPath")),
    _lacking("bring your own", "kubeletPlugin.networkPolicy"),
    _installed(),
)

CHARTS: Mapping[str, Chart] = {one.name: one for one in (DEVICE_PLUGIN, GPU_OPERATOR, DCGM_EXPORTER, DRA_DRIVER)}
