{{/*
Rejects values that values.schema.json cannot check, and with which the operator would not start or the API server would
reject part of the release. Each message has the field, its value, and what is valid.
*/}}
{{- define "muster.validate" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) -}}
{{- fail (printf "the release name must start with a letter and contain only lower-case letters, digits and -; got %q" .Release.Name) -}}
{{- end -}}
{{- with .Values.operator.lease -}}
{{- if not (and (gt (float64 .durationSeconds) (float64 .renewDeadlineSeconds)) (gt (float64 .renewDeadlineSeconds) (float64 .retryPeriodSeconds))) -}}
{{- fail (printf "operator.lease: durationSeconds (%v) must be above renewDeadlineSeconds (%v), and that above retryPeriodSeconds (%v)" .durationSeconds .renewDeadlineSeconds .retryPeriodSeconds) -}}
{{- end -}}
{{- end -}}
{{- with .Values.jobPods.priorityClass -}}
{{- if and .create (hasPrefix "system-" .name) -}}
{{- fail (printf "jobPods.priorityClass.name must not start with system-, which is reserved for Kubernetes; got %q" .name) -}}
{{- end -}}
{{- end -}}
{{- range (.Values.admissionPolicy.namespaceSelector | default dict).matchExpressions -}}
{{- if eq (empty .values) (has .operator (list "In" "NotIn")) -}}
{{- fail (printf "admissionPolicy.namespaceSelector: values of %q must be set for In and NotIn, and absent for Exists and DoesNotExist; got operator %s with %d values" .key .operator (len (.values | default list))) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.admissionPolicy.userLabel (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "admissionPolicy.userLabel: needs Kubernetes 1.30 or later; got %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- with .Values.visibility -}}
{{- if and (include "muster.readApi" $) .tls.secretName (not .tls.caBundle) (not .annotations) -}}
{{- fail (printf "visibility.tls.caBundle: must be the CA of the certificate in Secret %q, in base64, unless visibility.annotations let another program set it" .tls.secretName) -}}
{{- end -}}
{{- end -}}
{{- with .Values.dashboard.ingress -}}
{{- if ne (empty .host) (empty .className) -}}
{{- fail (printf "dashboard.ingress: host and className must both be set, or none; got host %q and className %q" .host .className) -}}
{{- end -}}
{{- end -}}
{{- include "muster.validateFlags" . -}}
{{- $own := include "muster.labels" . | fromYaml -}}
{{- range $field, $keys := dict "operator.podLabels" .Values.operator.podLabels "serviceMonitor.labels" .Values.serviceMonitor.labels "prometheusRule.labels" .Values.prometheusRule.labels -}}
{{- range $key, $_ := $keys -}}
{{- if hasKey $own $key -}}
{{- fail (printf "%s: label %s is set by the chart; use another key" $field $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasKey (.Values.operator.podAnnotations | default dict) "kubectl.kubernetes.io/default-container" -}}
{{- fail "operator.podAnnotations: annotation kubectl.kubernetes.io/default-container is set by the chart; use another key" -}}
{{- end -}}
{{- range $field := list "flavors" "queues" -}}
{{- $seen := dict -}}
{{- range index $.Values $field -}}
{{- if hasKey $seen .name -}}
{{- fail (printf "%s: names must be unique; got %q twice" $field .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Rejects flags that the chart sets: a second one would override the first, but not the RBAC rules or probes. */}}
{{- define "muster.validateFlags" -}}
{{- $values := dict
  "namespace" "helm's --namespace"
  "lease-name" "another release name"
  "lease-duration-seconds" "operator.lease.durationSeconds"
  "renew-deadline-seconds" "operator.lease.renewDeadlineSeconds"
  "retry-period-seconds" "operator.lease.retryPeriodSeconds"
  "qps" "operator.qps"
  "burst" "operator.burst"
  "in-flight" "operator.inFlight"
  "namespace-templates-mib" "operator.namespaceTemplatesMiB"
  "listen" "a Service of your own: probes and metrics need this address"
  "priority-class" "jobPods.priorityClass.name"
  "snapshot-dir" "nothing else: only /tmp can be written"
  "log-level" "operator.logLevel"
  "pod-security" "podSecurity"
  "pod-groups" "operator.podGroups"
  "collector-image" "collector.image"
  "collector-pull-policy" "collector.image.pullPolicy"
  "collector-resources" "collector.resources"
  "collector-all-jobs" "collector.allJobs"
  "collector-store" "collector.store.url"
  "collector-store-secret" "collector.store.secretName"
  "heartbeat-interval-seconds" "collector.heartbeatIntervalSeconds"
  "progress-interval-seconds" "collector.progressIntervalSeconds"
  "usage-retention-days" "usage.retentionDays"
  "visibility-listen" "visibility.enabled"
  "visibility-tls-dir" "visibility.tls.secretName"
-}}
{{- range .Values.operator.extraArgs -}}
{{- $flag := . | splitList "=" | first | trimPrefix "--" -}}
{{- if and (hasPrefix "--" .) (hasKey $values $flag) -}}
{{- fail (printf "operator.extraArgs: --%s is set by the chart; use %s" $flag (get $values $flag)) -}}
{{- end -}}
{{- if and (eq $flag "no-lease") (gt (int $.Values.replicas) 1) -}}
{{- fail (printf "operator.extraArgs: --no-lease needs replicas: 1, because every replica would lead; got %d" (int $.Values.replicas)) -}}
{{- end -}}
{{- end -}}
{{- end }}
