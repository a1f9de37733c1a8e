{{/* Names, labels and derived values that several templates share. */}}

{{- define "headgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 52 characters leave room for the longest suffix, "-metrics" and a few more. */}}
{{- define "headgate.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "headgate.selectorLabels" -}}
app.kubernetes.io/name: {{ include "headgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{/*
The selector's labels are missing here, because the selector must match the operator's Pods only. One map, because
duplicate keys are invalid in YAML; the chart's own labels override `commonLabels`.
*/}}
{{- define "headgate.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "headgate.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "headgate" -}}
{{ merge $own (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/* The labels above, and those of a map, which override them: (list . map). */}}
{{- define "headgate.labelsWith" -}}
{{ merge (dict) (last . | default dict) (include "headgate.labels" (first .) | fromYaml) | toYaml }}
{{- end }}

{{/* Labels of the operator's Pods. The chart's version is missing, because its change would restart the Pods. */}}
{{- define "headgate.podLabels" -}}
{{- $own := include "headgate.selectorLabels" . | fromYaml -}}
{{ merge $own (.Values.podLabels | default dict) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{- define "headgate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "headgate.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "headgate.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/*
The securityContext of each Pod. Values that `helm upgrade --reuse-values` kept from 0.1.0 lack the key. Helm removes
only the fields that are set to null. One map, because duplicate keys are invalid in YAML. Values
override the chart's own fields, except that merge counts `runAsNonRoot: false` as missing.
*/}}
{{- define "headgate.podSecurityContext" -}}
{{- $user := dict "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 }}
{{- $given := ternary .Values.podSecurityContext $user (hasKey .Values "podSecurityContext") }}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{ merge (dict) ($given | default dict) $own | toYaml }}
{{- end }}

{{/* The Secret with the operator's own certificate, key and the CA of proxies. */}}
{{- define "headgate.tlsSecretName" -}}
{{- if eq .Values.tls.mode "Secret" }}{{ .Values.tls.secretName }}{{ else }}{{ include "headgate.fullname" . }}-xds-tls{{ end }}
{{- end }}

{{/* The CA: a Secret beside the operator, and a ConfigMap in each namespace. */}}
{{- define "headgate.caName" -}}
{{ include "headgate.fullname" . }}-ca
{{- end }}

{{/* The DNS names at which proxies can reach the operator: a list. */}}
{{- define "headgate.dnsNames" -}}
{{- $name := include "headgate.fullname" . -}}
- {{ $name }}.{{ .Release.Namespace }}.svc
- {{ $name }}.{{ .Release.Namespace }}.svc.cluster.local
- {{ $name }}.{{ .Release.Namespace }}
- {{ $name }}
{{- range .Values.tls.generated.extraDnsNames }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* "true" if the webhook injects Pods. Values that `helm upgrade --reuse-values` kept from 0.1.0 lack the key. */}}
{{- define "headgate.injects" -}}
{{- if dig "enabled" false (.Values.injection | default dict) }}true{{ end }}
{{- end }}

{{/* "true" if operators elect a leader. Values that `helm upgrade --reuse-values` kept from 0.1.0 lack the key. */}}
{{- define "headgate.elects" -}}
{{- if dig "enabled" true (.Values.leaderElection | default dict) }}true{{ end }}
{{- end }}

{{/* The requirements of a label selector in text, as matchExpressions. */}}
{{- define "headgate.matchExpressions" -}}
{{- range regexFindAll `[^,(]+(\([^)]*\))?` . -1 }}
{{- $key := regexFind `[^\s!=<>(]+` . }}
{{- $values := regexSplit `\s*[(),]\s*` (regexFind `\(.*\)` .) -1 }}
{{- if regexMatch `^\s*!` . }}
- {key: {{ $key }}, operator: DoesNotExist}
{{- else if contains "(" . }}
- {key: {{ $key }}, operator: {{ regexMatch `\snotin\s*\(` . | ternary "NotIn" "In" }}, values: {{ slice $values 1 (sub (len $values) 1) | toJson }}}
{{- else if contains "=" . }}
- {key: {{ $key }}, operator: {{ contains "!=" . | ternary "NotIn" "In" }}, values: {{ list (regexReplaceAll `^.*=` . "" | trim) | toJson }}}
{{- else if regexMatch `[<>]` . }}
{{- fail (printf "watchNamespaceSelector has %q, which the injection webhook's namespaceSelector can't express; write it with in, notin, = or !=" (trim .)) }}
{{- else }}
- {key: {{ $key }}, operator: Exists}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" if the cluster serves the API of prometheus-operator. */}}
{{- define "headgate.hasPrometheusOperator" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" }}true{{ end }}
{{- end }}

{{/* Checks of several values together, which values.schema.json can't express. */}}
{{- define "headgate.check" -}}
{{- with .Values.tls }}
{{- if and (eq .mode "Secret") (not .secretName) }}
{{- fail "tls.mode is Secret and tls.secretName is empty; name a Secret with tls.crt, tls.key and ca.crt" }}
{{- end }}
{{- if and (ne .mode "Secret") .secretName }}
{{- fail (printf "tls.secretName is %s and tls.mode is %s; only mode Secret takes a Secret of yours" .secretName .mode) }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "autoscaling.minReplicas is %d and maxReplicas is %d; the first can't be more than the second" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- end }}
{{- if and (include "headgate.injects" .) (eq .Values.tls.mode "Disabled") }}
{{- fail "injection.enabled is true and tls.mode is Disabled; the API server calls webhooks over HTTPS only" }}
{{- end }}
{{- if and (include "headgate.injects" .) (semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "injection.enabled is true and Kubernetes is %s; before 1.33, Services don't find the named port of a sidecar (set the cluster's version for helm template: --kube-version)" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (not (include "headgate.elects" .)) (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) }}
{{- fail "leaderElection.enabled is false, and several operators may run; set replicas to 1 and autoscaling.enabled to false" }}
{{- end }}
{{- if and .Values.watchNamespaces .Values.watchNamespaceSelector }}
{{- fail "watchNamespaces and watchNamespaceSelector are both set; namespaces are watched by a list or by their labels" }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) .Values.rbac.create }}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty; name the account that gets the operator's permissions, or set rbac.create to false" }}
{{- end }}
{{- end }}
