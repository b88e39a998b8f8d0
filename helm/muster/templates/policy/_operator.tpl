{{/*
What the operator's account may do beyond what RBAC can express. Each part is the specification of one
ValidatingAdmissionPolicy; other accounts are not affected. tests/cluster/test_admission_policy.py has each rule.
*/}}

{{/* Whether the policies are part of the release: from Kubernetes 1.30 on, where every API server has them. */}}
{{- define "muster.policyEnabled" -}}
{{- if and .Values.admissionPolicy.enabled (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}true{{ end -}}
{{- end }}

{{/* Objects of jobs: in namespaces of jobs, with the job as their only owner, so that they are deleted with it. */}}
{{- define "muster.policy.objects" -}}
{{- $own := printf `request.namespace == %q` .Release.Namespace -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods, services, secrets]}
  - {apiGroups: [scheduling.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [podgroups]}
variables:
- name: ownKey # the key of the collectors' tokens: see the part `secrets`
  expression: {{ printf `request.resource.resource == "secrets" && %s` $own | quote }}
- name: owners
  expression: "has(object.metadata.ownerReferences) ? object.metadata.ownerReferences : []"
- name: labels
  expression: "has(namespaceObject.metadata.labels) ? namespaceObject.metadata.labels : {}"
validations:
- expression: {{ printf `variables.ownKey || !(request.namespace.startsWith("kube-") || %s)` $own | quote }}
  message: Muster's operator creates nothing in namespaces kube-* and little in its own
  reason: Forbidden
{{- with include "muster.policy.selector" (.Values.admissionPolicy.namespaceSelector | default dict) }}
- expression: {{ printf "variables.ownKey || (%s)" . | quote }}
  message: Muster's operator creates objects only in namespaces that admissionPolicy.namespaceSelector (chart value) selects
  reason: Forbidden
{{- end }}
- expression: >-
    variables.ownKey || (size(variables.owners) == 1 && variables.owners.all(o, o.apiVersion.startsWith("muster.dev/")
    && o.kind == "TrainingJob" && has(o.controller) && o.controller))
  message: what Muster's operator creates must have exactly one owner, the TrainingJob that controls it
  reason: Forbidden
{{- end }}

{{/* A label selector as an expression on `variables.labels`; empty if it selects everything. */}}
{{- define "muster.policy.selector" -}}
{{- $terms := list -}}
{{- range $key, $value := .matchLabels -}}
{{- $terms = append $terms (printf `%q in variables.labels && variables.labels[%q] == %q` $key $key $value) -}}
{{- end -}}
{{- range .matchExpressions -}}
{{- $has := printf `%q in variables.labels` .key -}}
{{- $in := printf `%s && variables.labels[%q] in %s` $has .key (toJson (.values | default list)) -}}
{{- $terms = append $terms (get (dict "Exists" $has "DoesNotExist" (printf "!(%s)" $has) "In" $in "NotIn" (printf "!(%s)" $in)) .operator) -}}
{{- end -}}
{{- join " && " $terms -}}
{{- end }}

{{/* Pods without privileges on their nodes, which kube-scheduler binds. */}}
{{- define "muster.policy.pods" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}
variables:
- name: containers
  expression: "object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
- name: capabilities # those of Pod Security's baseline, and those for RDMA, profilers and scheduling of processes
  expression: >-
    ["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYS_CHROOT", "IPC_LOCK", "NET_RAW", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE"]
validations:
- expression: "!has(object.spec.nodeName)"
  message: nodeName must not be set
  reason: Forbidden
{{- with .Values.admissionPolicy.allow }}
{{- if not .privileged }}
- expression: >-
    variables.containers.all(c, !has(c.securityContext)
    || (!(has(c.securityContext.privileged) && c.securityContext.privileged)
    && !(has(c.securityContext.windowsOptions) && has(c.securityContext.windowsOptions.hostProcess) && c.securityContext.windowsOptions.hostProcess)))
    && !(has(object.spec.securityContext) && has(object.spec.securityContext.windowsOptions)
    && has(object.spec.securityContext.windowsOptions.hostProcess) && object.spec.securityContext.windowsOptions.hostProcess)
  message: no container may be privileged or a host process (chart value admissionPolicy.allow.privileged)
  reason: Forbidden
- expression: >-
    variables.containers.all(c, !has(c.securityContext) || !has(c.securityContext.capabilities)
    || !has(c.securityContext.capabilities.add) || c.securityContext.capabilities.add.all(k, k in variables.capabilities))
  messageExpression: >-
    'no container may add other capabilities than ' + variables.capabilities.join(', ')
    + ' (chart value admissionPolicy.allow.privileged)'
  reason: Forbidden
{{- end }}
{{- if not .hostPath }}
- expression: "!has(object.spec.volumes) || object.spec.volumes.all(v, !has(v.hostPath))"
  message: no volume may be a hostPath (chart value admissionPolicy.allow.hostPath)
  reason: Forbidden
{{- end }}
{{- range $field := list "hostNetwork" "hostPID" "hostIPC" }}
{{- if not (index $.Values.admissionPolicy.allow $field) }}
- expression: {{ printf "!has(object.spec.%s) || !object.spec.%s" $field $field | quote }}
  message: {{ printf "%s must be false (chart value admissionPolicy.allow.%s)" $field $field }}
  reason: Forbidden
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Services that are names of pods of their job, and nothing else. */}}
{{- define "muster.policy.services" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [services]}
validations:
- expression: >-
    has(object.spec.clusterIP) && object.spec.clusterIP == "None" && (!has(object.spec.type) || object.spec.type == "ClusterIP")
    && !has(object.spec.externalName) && (!has(object.spec.externalIPs) || size(object.spec.externalIPs) == 0)
  message: a Service that Muster's operator creates must be headless (clusterIP None), without externalIPs
  reason: Forbidden
- expression: >-
    has(object.spec.selector) && "muster.dev/job-uid" in object.spec.selector && has(object.metadata.ownerReferences)
    && object.metadata.ownerReferences.all(o, o.uid == object.spec.selector["muster.dev/job-uid"])
  message: a Service that Muster's operator creates must select pods of its job by muster.dev/job-uid
  reason: Forbidden
{{- end }}

{{/* Two kinds of Secrets: the token of a job's collectors, and in the operator's namespace the key of all tokens. */}}
{{- define "muster.policy.secrets" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}
variables:
- name: own
  expression: {{ printf "request.namespace == %q" .Release.Namespace | quote }}
- name: named
  expression: >-
    has(object.metadata.name) && (variables.own ? object.metadata.name == "{{ include "muster.operator" . }}-collector-key"
    : object.metadata.name.endsWith("-collector") && has(object.metadata.ownerReferences)
    && object.metadata.ownerReferences.exists(o, ["", "j"].exists(p, object.metadata.name.startsWith(p + o.name + "-")
    && size(object.metadata.name) == size(p + o.name + "-12345-collector"))))
validations:
- expression: variables.named
  message: a Secret that Muster's operator creates must be named JOB-HASH-collector, or in its own namespace {{ include "muster.operator" . }}-collector-key
  reason: Forbidden
- expression: 'has(object.data) && size(object.data) == 1 && (variables.own ? "key" : "token") in object.data'
  message: a Secret that Muster's operator creates must have the key `token` only, or in its own namespace `key`
  reason: Forbidden
- expression: '!has(object.type) || object.type == "Opaque"'
  message: a Secret that Muster's operator creates must be of type Opaque
  reason: Forbidden
{{- end }}

{{/* Pods are deleted by their label: a pod that has lost its job has no owner. */}}
{{- define "muster.policy.deletions" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [DELETE], resources: [pods]}
  - {apiGroups: [scheduling.k8s.io], apiVersions: ["*"], operations: [DELETE], resources: [podgroups]}
validations:
- expression: {{ printf `!(request.namespace.startsWith("kube-") || request.namespace == %q)` .Release.Namespace | quote }}
  message: Muster's operator deletes nothing in namespaces kube-*, and no pod of its own namespace
  reason: Forbidden
{{- if .Values.queuedKinds }}
- expression: >-
    has(oldObject.metadata.labels) && ("muster.dev/job" in oldObject.metadata.labels
    || "muster.dev/attempt" in oldObject.metadata.labels)
  message: Muster's operator deletes only pods with the label muster.dev/job or muster.dev/attempt, and PodGroups
{{- else }}
- expression: 'has(oldObject.metadata.labels) && "muster.dev/job" in oldObject.metadata.labels'
  message: Muster's operator deletes only pods and PodGroups with the label muster.dev/job
{{- end }}
  reason: Forbidden
{{- end }}

{{/* Of pods and objects that queue, the operator changes where and when they run, and not what. */}}
{{- define "muster.policy.queued" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}
  - {apiGroups: [batch], apiVersions: ["*"], operations: [UPDATE], resources: [jobs]}
  - {apiGroups: [jobset.x-k8s.io], apiVersions: ["*"], operations: [UPDATE], resources: [jobsets]}
  - {apiGroups: [trainer.kubeflow.org], apiVersions: ["*"], operations: [UPDATE], resources: [trainjobs]}
variables:
- name: isPod
  expression: 'request.resource.resource == "pods"'
- name: isTemplate
  expression: 'variables.isPod || request.resource.resource == "jobs"'
- name: before
  expression: "variables.isPod ? oldObject.spec : oldObject.spec.template.spec"
- name: after
  expression: "variables.isPod ? object.spec : object.spec.template.spec"
# `dyn`: other kinds of these rules do not have the fields. Of a TrainJob, one entry of its runtime patches, with labels, an annotation and scheduling gates.
- name: patches
  expression: "has(dyn(object).spec.runtimePatches) ? dyn(object).spec.runtimePatches : []"
- name: oldPatches
  expression: "has(dyn(oldObject).spec.runtimePatches) ? dyn(oldObject).spec.runtimePatches : []"
validations:
- expression: >-
    !variables.isPod || (has(oldObject.spec.schedulingGates)
    && oldObject.spec.schedulingGates.exists(g, g.name == "muster.dev/admission"))
  message: Muster's operator changes only pods with the scheduling gate muster.dev/admission
  reason: Forbidden
- expression: >-
    !variables.isTemplate || variables.after.containers == variables.before.containers
    && (has(variables.after.initContainers) ? variables.after.initContainers : [])
    == (has(variables.before.initContainers) ? variables.before.initContainers : [])
  message: Muster's operator does not change containers
  reason: Forbidden
- expression: >-
    request.resource.resource != "jobsets" || dyn(object).spec.replicatedJobs.all(j,
    dyn(oldObject).spec.replicatedJobs.exists(o, o.name == j.name && o.template.spec.template.spec.containers == j.template.spec.template.spec.containers
    && (has(o.template.spec.template.spec.initContainers) ? o.template.spec.template.spec.initContainers : [])
    == (has(j.template.spec.template.spec.initContainers) ? j.template.spec.template.spec.initContainers : [])))
  message: Muster's operator does not change containers
  reason: Forbidden
- expression: >-
    request.resource.resource != "trainjobs"
    || (variables.patches.filter(p, p.manager != "muster.dev/operator")
    == variables.oldPatches.filter(p, p.manager != "muster.dev/operator")
    && variables.patches.filter(p, p.manager == "muster.dev/operator").all(p,
    p.trainingRuntimeSpec.template.spec.replicatedJobs.all(j,
    !["containers", "initContainers", "volumes", "serviceAccountName", "securityContext"].exists(field,
    field in j.template.spec.template.spec))))
  message: Muster's operator changes scheduling gates of a TrainJob's pods only
  reason: Forbidden
- expression: 'variables.isPod || (has(oldObject.metadata.labels) && "muster.dev/queue" in oldObject.metadata.labels)'
  message: Muster's operator changes only objects with the label muster.dev/queue
  reason: Forbidden
{{- end }}

{{/* Of a queue, the operator writes the finalizer. */}}
{{- define "muster.policy.queues" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [muster.dev], apiVersions: ["*"], operations: [UPDATE], resources: [queues]}
validations:
- expression: "object.spec == oldObject.spec"
  message: Muster's operator does not change the spec of a queue
  reason: Forbidden
# Kubernetes deletes an object whose owner does not exist.
- expression: >-
    (has(object.metadata.ownerReferences) ? object.metadata.ownerReferences : [])
    == (has(oldObject.metadata.ownerReferences) ? oldObject.metadata.ownerReferences : [])
  message: Muster's operator does not change the owners of a queue
  reason: Forbidden
{{- end }}

{{/* In its own namespace: its Lease and the record of usage. */}}
{{- define "muster.policy.own" -}}
matchConstraints:
  resourceRules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [configmaps]}
  - {apiGroups: [coordination.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [leases]}
variables:
- name: written
  expression: 'request.operation == "DELETE" ? oldObject : object'
validations:
- expression: >-
    has(variables.written.metadata.name) && (request.resource.resource == "leases"
    ? variables.written.metadata.name == "{{ include "muster.operator" . }}"
    : variables.written.metadata.name.startsWith("{{ include "muster.operator" . }}-usage-"))
  message: in its own namespace Muster's operator writes only its Lease and its record of usage
  reason: Forbidden
{{- end }}
