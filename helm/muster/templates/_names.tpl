{{/* The release name including the chart name, truncated for the suffixes. */}}
{{- define "muster.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 43 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 43 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "muster.operator" -}}
{{ include "muster.name" . }}-operator
{{- end }}

{{- define "muster.dashboard" -}}
{{ include "muster.name" . }}-dashboard
{{- end }}

{{- define "muster.dashboardSelector" -}}
app.kubernetes.io/name: muster-dashboard
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "muster.dashboardLabels" -}}
{{ include "muster.dashboardSelector" . }}
{{ include "muster.commonLabels" . }}
{{- end }}

{{/* The Secret with the certificate of the dashboard. */}}
{{- define "muster.dashboardSecret" -}}
{{ .Values.dashboard.tls.secretName | default (include "muster.dashboard" .) }}
{{- end }}

{{/* Names of the dashboard's Service, as a JSON list. */}}
{{- define "muster.dashboardHosts" -}}
{{- $name := include "muster.dashboard" . -}}
{{- $inNamespace := printf "%s.%s" $name .Release.Namespace -}}
{{ list $name $inNamespace (printf "%s.svc" $inNamespace) (printf "%s.svc.cluster.local" $inNamespace) | toJson }}
{{- end }}

{{/* Whether the operator serves the read API, which the dashboard needs; empty: no. */}}
{{- define "muster.readApi" -}}
{{- if or .Values.visibility.enabled .Values.dashboard.enabled }}true{{ end -}}
{{- end }}

{{/* The Secret with the certificate of the read API. */}}
{{- define "muster.visibilitySecret" -}}
{{ .Values.visibility.tls.secretName | default (printf "%s-visibility" (include "muster.operator" .)) }}
{{- end }}

{{- define "muster.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "muster.operator" .) }}
{{- end }}

{{/* Immutable labels: the selector of a Deployment cannot be changed. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "muster.labels" -}}
{{ include "muster.selector" . }}
{{ include "muster.commonLabels" . }}
{{- end }}

{{- define "muster.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: muster
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Image of collectors; empty: no collectors. */}}
{{- define "muster.collectorImage" -}}
{{- with .Values.collector.image -}}
{{- if .repository -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "muster.image" -}}
{{- with .Values.image -}}
{{- $repository := required "image.repository must be set to your image of the operator" .repository -}}
{{- if .digest -}}
{{ $repository }}@{{ .digest }}
{{- else -}}
{{ $repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Group, version and plural of an entry of queuedKinds: the name of a kind, or a row. */}}
{{- define "muster.queuedKind" -}}
{{- $known := dict
  "Job" (dict "group" "batch" "version" "v1" "plural" "jobs")
  "JobSet" (dict "group" "jobset.x-k8s.io" "version" "v1alpha2" "plural" "jobsets")
  "TrainJob" (dict "group" "trainer.kubeflow.org" "version" "v1alpha1" "plural" "trainjobs") }}
{{- (kindIs "string" . | ternary (get $known (toString .)) .) | toYaml }}
{{- end }}

{{/* Rules of admission policies for these operations on the kinds that queue and whose `suspend` is spec.suspend. */}}
{{- define "muster.queuedRules" -}}
{{- $operations := .operations }}
{{- range .kinds }}
{{- if or (kindIs "string" .) (eq (default "spec.suspend" .suspend) "spec.suspend") }}
{{- $row := include "muster.queuedKind" . | fromYaml }}
- {apiGroups: [{{ $row.group | quote }}], apiVersions: [{{ $row.version | quote }}], operations: [{{ $operations }}], resources: [{{ $row.plural | quote }}]}
{{- end }}
{{- end }}
{{- end }}
