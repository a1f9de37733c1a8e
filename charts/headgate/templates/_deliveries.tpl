{{/* Deliveries: the operator's arguments and rights for each, and the rights of its clean-up. */}}

{{/*
"true" if the operator removes the objects of deliveries that are off, else nothing. A new release has no such objects.
*/}}
{{- define "headgate.removesLeftovers" -}}
{{- $is := .Values.delivery.removeLeftovers }}
{{- if ternary .Release.IsUpgrade $is (kindIs "invalid" $is) }}true{{ end }}
{{- end }}

{{/* The operator's arguments for deliveries. */}}
{{- define "headgate.deliveryArgs" -}}
{{- with .Values.delivery }}
{{- $adapters := list }}
{{- if .istio.enabled }}{{ $adapters = append $adapters "istio" }}{{ end }}
{{- if .envoyGateway.enabled }}{{ $adapters = append $adapters "envoy-gateway" }}{{ end }}
- --adapters={{ $adapters | join "," | default "none" }}
{{- with .istio.namespace }}
- --istio-namespace={{ . }}
{{- end }}
{{- with .envoyGateway.namespace }}
- --envoy-gateway-namespace={{ . }}
{{- end }}
{{- if .istio.nativeModule }}
- --istio-native={{ .istio.nativeModule }}
{{- end }}
{{- if .envoyGateway.nativeModule }}
- --envoy-gateway-native={{ .envoyGateway.nativeModule }}
{{- end }}
{{- if .configMap.enabled }}
- --deliver-config-maps
{{- end }}
{{- if not (include "headgate.removesLeftovers" $) }}
- --keep-leftovers
{{- end }}
{{- end }}
{{- end }}

{{/* The rules in each namespace for deliveries. */}}
{{- define "headgate.deliveryRules" -}}
{{- $leftovers := include "headgate.removesLeftovers" . }}
{{- with .Values.delivery }}
{{- if .configMap.enabled }}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, watch, create, patch, delete]
{{- end }}
{{- $written := "list, watch, create, patch, delete" }}
{{- /* For objects from before istio.nativeModule was set or emptied. */}}
{{- $other := ternary "list, watch, delete" "" (not (empty $leftovers)) }}
{{- /* For objects from before a delivery was turned off. */}}
{{- $off := ternary "list, delete" "" (not (empty $leftovers)) }}
{{- $isNative := not (empty .istio.nativeModule) }}
{{- with ternary (ternary $other $written $isNative) $off .istio.enabled }}
- apiGroups: [extensions.istio.io]
  resources: [trafficextensions, wasmplugins]
  verbs: [{{ . }}]
{{- end }}
{{- with ternary (ternary $written $other $isNative) $off .istio.enabled }}
- apiGroups: [networking.istio.io]
  resources: [envoyfilters]
  verbs: [{{ . }}]
{{- end }}
{{- with ternary $written $off .envoyGateway.enabled }}
- apiGroups: [gateway.envoyproxy.io]
  resources: [envoyextensionpolicies]
  verbs: [{{ . }}]
{{- end }}
{{- end }}
{{- end }}

{{/* The rules in each namespace for the clean-up. */}}
{{- define "headgate.cleanUpRules" -}}
# Also objects of deliveries that are off now.
- apiGroups: [extensions.istio.io]
  resources: [trafficextensions, wasmplugins]
  verbs: [list, delete]
- apiGroups: [networking.istio.io]
  resources: [envoyfilters]
  verbs: [list, delete]
- apiGroups: [gateway.envoyproxy.io]
  resources: [envoyextensionpolicies]
  verbs: [list, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [list, delete]
{{- end }}
