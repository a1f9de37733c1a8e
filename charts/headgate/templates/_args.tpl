{{/* The operator's arguments: a list. */}}
{{- define "headgate.args" -}}
- run
- --kubernetes
- --xds=[::]:18000
- --admin=[::]:18001
- --probes=[::]:18003
- --modules=[::]:18002
- --admission=[::]:18004
- --module-dir=/var/lib/headgate/modules
- --native=/bin/libheadgate.so
- --lease={{ include "headgate.fullname" . }}
{{- if include "headgate.elects" . }}
{{- with dig "leaseDuration" "" (.Values.leaderElection | default dict) }}
- --leader-elect-lease-duration={{ . }}
{{- end }}
{{- with dig "renewDeadline" "" (.Values.leaderElection | default dict) }}
- --leader-elect-renew-deadline={{ . }}
{{- end }}
{{- with dig "retryPeriod" "" (.Values.leaderElection | default dict) }}
- --leader-elect-retry-period={{ . }}
{{- end }}
{{- else }}
- --leader-elect=false
{{- end }}
- --peers-service={{ include "headgate.fullname" . }}-metrics
- --peers-token=/var/run/secrets/headgate.dev/token
- --log-format={{ .Values.log.format }}
{{- with .Values.maxConnections }}
- --max-connections={{ int64 . }}
{{- end }}
{{- if ne .Values.tls.mode "Disabled" }}
- --tls-cert=/etc/headgate/tls/tls.crt
- --tls-key=/etc/headgate/tls/tls.key
- --client-ca=/etc/headgate/tls/ca.crt
- --publish-ca={{ include "headgate.caName" . }}
{{- end }}
{{- if eq .Values.tls.mode "Generated" }}
- --tls-authority={{ include "headgate.caName" . }}
{{- range concat (include "headgate.dnsNames" . | fromYamlArray) (.Values.tls.generated.ipAddresses | default list) }}
- --tls-name={{ . }}
{{- end }}
{{- end }}
{{- if include "headgate.injects" . }}
- --injection=[::]:18005
- --injection-webhook={{ include "headgate.fullname" . }}
{{- $xds := printf "%s.%s.svc:%v" (include "headgate.fullname" .) .Release.Namespace .Values.service.xdsPort }}
{{- $own := list (printf "--image=%s" (include "headgate.image" .)) (printf "--xds=%s" $xds) (printf "--ca-config-map=%s" (include "headgate.caName" .)) }}
{{- range concat $own (.Values.injection.args | default list) }}
- {{ printf "--inject-arg=%s" . | quote }}
{{- end }}
{{- end }}
{{- range .Values.watchNamespaces }}
- --watch-namespace={{ . }}
{{- end }}
{{- with .Values.watchNamespaceSelector }}
- {{ printf "--namespace-selector=%s" . | quote }}
{{- end }}
{{ include "headgate.deliveryArgs" . | trim }}
- --modules-url=http://{{ include "headgate.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.modulesPort }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
