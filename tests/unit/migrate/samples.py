"""Values as clusters have them: of each chart all keys that its releases are known to have, said in our own words."""

DEVICE_PLUGIN = """
config:
  name: ""
  map:
    default: |-
      version: v1
      flags: {migStrategy: none}
    shared: |-
      version: v1
      sharing:
        timeSlicing:
          failRequestsGreaterThanOne: true
          resources: [{name: nvidia.com/gpu, replicas: 4}]
  default: default
  fallbackStrategies: [named, single]
compatWithCPUManager: true
migStrategy: mixed
failOnInitError: true
deviceListStrategy: volume-mounts
deviceIDStrategy: uuid
nvidiaDriverRoot: /run/nvidia/driver
nvidiaDevRoot: /
gdrcopyEnabled: true
gdsEnabled: false
mofedEnabled: null
deviceDiscoveryStrategy: nvml
nameOverride: plugin
fullnameOverride: ""
namespaceOverride: ""
selectorLabelsOverride: {}
componentSelectorLabels: {enabled: false}
allowDefaultNamespace: false
imagePullSecrets: [{name: mirror}]
image: {repository: mirror.example/k8s-device-plugin, pullPolicy: IfNotPresent, tag: ""}
updateStrategy: {type: RollingUpdate}
podAnnotations: {team: ml}
podSecurityContext: {}
securityContext: {}
resources: {}
nodeSelector: {pool: gpu}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: pool, operator: Exists}]
tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
priorityClassName: system-node-critical
runtimeClassName: nvidia
devicePlugin:
  enabled: true
  enableHostNetwork: false
  containers:
    main:
      env:
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - {name: DP_DISABLE_HEALTHCHECKS, value: "79"}
gfd:
  enabled: false
  nameOverride: gpu-feature-discovery
  namespaceOverride: ""
  noTimestamp: null
  sleepInterval: 30s
  securityContext: {privileged: true}
nfd: {master: {config: {extraLabelNs: [nvidia.com]}}}
mps: {root: /run/nvidia/mps, enableHostPID: true}
cdi: {nvidiaHookPath: /usr/bin/nvidia-cdi-hook, featureFlags: disable-nvsandboxutils}
"""

GPU_OPERATOR = """
platform: {openshift: false}
nfd: {enabled: true, nodefeaturerules: false}
psa: {enabled: false}
cdi: {enabled: true, nriPluginEnabled: false}
sandboxWorkloads: {enabled: false, defaultWorkload: container, mode: kubevirt}
hostPaths: {rootFS: /, driverInstallDir: /run/nvidia/driver}
daemonsets:
  labels: {team: ml}
  annotations: {}
  priorityClassName: system-node-critical
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  updateStrategy: RollingUpdate
  rollingUpdate: {maxUnavailable: "1"}
validator: {plugin: {env: []}}
operator: {repository: nvcr.io/nvidia, upgradeCRD: true}
mig: {strategy: single}
driver:
  enabled: true
  kernelModuleType: auto
  version: 580.126.20
  upgradePolicy: {autoUpgrade: true}
  secretEnv: ""
toolkit: {enabled: true}
devicePlugin:
  enabled: true
  repository: nvcr.io/nvidia
  image: k8s-device-plugin
  version: v0.18.2
  imagePullPolicy: IfNotPresent
  imagePullSecrets: []
  args: []
  env:
    - {name: PASS_DEVICE_SPECS, value: "true"}
    - {name: DEVICE_ID_STRATEGY, value: uuid}
  resources: {}
  config:
    create: true
    name: plugin-configs
    default: shared
    data:
      shared: |-
        version: v1
        sharing:
          mps:
            resources: [{name: nvidia.com/gpu, replicas: 8}]
  mps: {root: /run/nvidia/mps}
dcgm: {enabled: false}
dcgmExporter:
  enabled: true
  env: [{name: DCGM_EXPORTER_LISTEN, value: ":9400"}]
  hostPID: false
  hostNetwork: false
  service: {internalTrafficPolicy: Cluster}
  serviceMonitor: {enabled: true, interval: 15s, honorLabels: false, additionalLabels: {}, relabelings: []}
  config:
    create: true
    name: metrics
    data: |-
      # of the exporter's form
      DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.
      DCGM_FI_DEV_RETIRED_SBE, counter, Retired pages.
      DCGM_FI_DEV_NOBODY_HAS_THIS, gauge, Nothing.
gfd: {enabled: true, env: [{name: GFD_SLEEP_INTERVAL, value: 60s}]}
migManager:
  enabled: true
  env: [{name: WITH_REBOOT, value: "false"}]
  config:
    default: all-disabled
    create: true
    name: layouts
    data:
      config.yaml: |-
        version: v1
        mig-configs:
          halves:
            - {devices: all, mig-enabled: true, mig-devices: {3g.71gb: 2}}
  gpuClientsConfig: {name: ""}
nodeStatusExporter: {enabled: false}
gds: {enabled: true, image: nvidia-fs}
gdrcopy: {enabled: false, image: gdrdrv}
vgpuManager: {enabled: false}
vgpuDeviceManager: {enabled: true}
vfioManager: {enabled: true}
kataManager: {enabled: false}
sandboxDevicePlugin: {enabled: true}
kataSandboxDevicePlugin: {enabled: true}
ccManager: {enabled: true}
extraObjects: []
node-feature-discovery: {gc: {enable: true}}
"""

DCGM_EXPORTER = """
image: {repository: nvcr.io/nvidia/k8s/dcgm-exporter, pullPolicy: IfNotPresent, tag: 4.2.3}
arguments: ["-f", /etc/dcgm-exporter/default-counters.csv]
imagePullSecrets: []
nameOverride: ""
fullnameOverride: ""
namespaceOverride: ""
runtimeClassName: ""
serviceAccount: {create: true, annotations: {}, name: null}
rollingUpdate: {maxUnavailable: 1, maxSurge: 0}
podLabels: {team: ml}
podAnnotations: {}
podSecurityContext: {}
securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN]}}
service: {enable: true, type: ClusterIP, internalTrafficPolicy: Cluster, clusterIP: "", port: 9401, address: ":9401", annotations: {}}
resources: {}
serviceMonitor: {enabled: true, apiVersion: monitoring.coreos.com/v1, interval: 15s, honorLabels: false, additionalLabels: {}, relabelings: []}
nodeSelector: {pool: gpu}
tolerations: [{operator: Exists}]
affinity: {}
extraHostVolumes: []
extraConfigMapVolumes: []
extraVolumeMounts: []
extraEnv: [{name: DCGM_EXPORTER_INTERVAL, value: "15000"}, {name: TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}]
kubeletPath: /var/lib/kubelet/pod-resources
tlsServerConfig: {enabled: false}
basicAuth: {users: {}}
kubernetes: {enablePodLabels: true, rbac: {create: true}}
customMetrics: |
  DCGM_FI_DEV_XID_ERROR, gauge, The last Xid.
"""  # noqa: E501 - as long as they are

DRA_DRIVER = """
nvidiaDriverRoot: /
nvidiaCDIHookPath: ""
nameOverride: ""
fullnameOverride: ""
namespaceOverride: ""
selectorLabelsOverride: {}
gpuResourcesEnabledOverride: true
allowDefaultNamespace: false
consumableShares: memory
imagePullSecrets: []
image: {repository: nvcr.io/nvidia/k8s-dra-driver-gpu, pullPolicy: IfNotPresent, tag: ""}
serviceAccount: {create: true, annotations: {}, name: ""}
resources: {gpus: {enabled: true}, computeDomains: {enabled: true}}
featureGates: {DynamicMIG: true, TimeSlicingSettings: true, MPSSupport: false, PassthroughSupport: true}
logVerbosity: "4"
webhook: {enabled: false}
controller: {priorityClassName: system-node-critical, nodeSelector: {}}
kubeletPlugin:
  priorityClassName: system-node-critical
  updateStrategy: {type: RollingUpdate}
  podAnnotations: {}
  podSecurityContext: {}
  nodeSelector: {}
  tolerations: []
  containers: {gpus: {securityContext: {privileged: true}}}
  affinity: {}
"""

SAMPLES = {
    "device-plugin": DEVICE_PLUGIN,
    "gpu-operator": GPU_OPERATOR,
    "dcgm-exporter": DCGM_EXPORTER,
    "dra-driver": DRA_DRIVER,
}
