{{/* The labels that every object of a release has. */}}
{{- define "labels" -}}
app.kubernetes.io/name: gpu-node-agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The manifests that kustomize uses too, in the release's namespace and with its labels. Takes root and file. */}}
{{- define "objects" -}}
{{- $text := required (printf "the chart lacks %s" .file) (.root.Files.Get .file) -}}
{{- range $document := regexSplit "(?m)^---$" (replace "gpu-node-agent:gpu-node-agent" (printf "%s:gpu-node-agent" .root.Release.Namespace) $text) -1 }}
{{- $object := fromYaml $document }}
{{- $_ := set $object.metadata "labels" (merge (dict) (default dict $object.metadata.labels) (fromYaml (include "labels" $.root))) }}
{{- if has $object.kind (list "ServiceAccount" "Role" "RoleBinding" "PodMonitor" "PrometheusRule") }}
{{- $_ := set $object.metadata "namespace" $.root.Release.Namespace }}
{{- end }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $.root.Release.Namespace }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
