{{/* The release's name, with the chart's in it; short enough for every suffix. */}}
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

{{- define "muster.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "muster.operator" .) }}
{{- end }}

{{/* What never changes: a Deployment's selector cannot be edited. */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "muster.labels" -}}
{{ include "muster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: muster
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of collectors; empty where there are none. */}}
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
{{- $repository := required "image.repository: missing; write where your image of the operator lies" .repository -}}
{{- if .digest -}}
{{ $repository }}@{{ .digest }}
{{- else -}}
{{ $repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}
