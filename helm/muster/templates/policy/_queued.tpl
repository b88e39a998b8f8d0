{{/*
Expressions about objects that queue, for the policies of queued.yaml. `kinds`: the chart value queuedKinds.
*/}}

{{/* Whether the requester is the controller of a kind: who may write the status of its objects. Users' roles may not. */}}
{{- define "muster.isController" -}}
authorizer.group('{{ .group }}').resource('{{ .plural }}').subresource('status').namespace(request.namespace).check('update').allowed()
{{- end }}

{{/* Who creates pods of objects that queue: the controllers of Jobs, and of kinds whose controllers create pods themselves. */}}
{{- define "muster.mayCreatePods" -}}
{{- $terms := list (include "muster.isController" (dict "group" "batch" "plural" "jobs")) -}}
{{- range .kinds -}}
{{- if not (kindIs "string" .) -}}
{{- $terms = append $terms (include "muster.isController" .) -}}
{{- end -}}
{{- end -}}
{{ join " || " $terms }}
{{- end }}

{{/* False for what the controller of another object creates, where `admitted` of an admitted one: only the outermost object queues.
The annotation is in its templates from the admission on. Empty if no kind that queues has such a controller. */}}
{{- define "muster.notNested" -}}
{{- $job := "true" -}}
{{- $jobSet := "true" -}}
{{- if .admitted -}}
{{- $annotated := `has(%[1]s.metadata) && has(%[1]s.metadata.annotations) && "muster.dev/object" in %[1]s.metadata.annotations` -}}
{{- $job = printf $annotated "dyn(object).spec.template" -}}
{{- $jobSet = printf `dyn(object).spec.replicatedJobs.all(j, %s)` (printf $annotated "j.template.spec.template") -}}
{{- end -}}
{{- $terms := list -}}
{{- if or (has "JobSet" .kinds) (has "TrainJob" .kinds) -}}
{{- $controller := include "muster.isController" (dict "group" "jobset.x-k8s.io" "plural" "jobsets") -}}
{{- $terms = append $terms (printf `request.kind.kind == "Job" && o.kind == "JobSet" && %s && %s` $job $controller) -}}
{{- end -}}
{{- if has "TrainJob" .kinds -}}
{{- $controller := include "muster.isController" (dict "group" "trainer.kubeflow.org" "plural" "trainjobs") -}}
{{- $terms = append $terms (printf `request.kind.kind == "JobSet" && o.kind == "TrainJob" && %s && %s` $jobSet $controller) -}}
{{- end -}}
{{- with $terms -}}
!(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && ({{ join " || " . }})))
{{- end -}}
{{- end }}

{{/* For each kind, whether an update keeps Muster's gate in every pod template that has it. */}}
{{- define "muster.keepsGates" -}}
{{- $gated := `has(%[1]s.spec) && has(%[1]s.spec.schedulingGates) && %[1]s.spec.schedulingGates.exists(g, g.name == "muster.dev/admission")` -}}
{{- $terms := list "true" -}}
{{- range .kinds -}}
{{- $row := include "muster.queuedKind" . | fromYaml -}}
{{- $kept := "" -}}
{{- if eq (toString .) "TrainJob" -}}
{{- $kept = `(has(dyn(oldObject).spec.runtimePatches) ? dyn(oldObject).spec.runtimePatches : []).filter(p, p.manager == "muster.dev/operator").all(p, has(dyn(object).spec.runtimePatches) && dyn(object).spec.runtimePatches.exists(n, n == p))` -}}
{{- else if eq (toString .) "JobSet" -}}
{{- $old := printf $gated "o.template.spec.template" -}}
{{- $new := printf $gated "j.template.spec.template" -}}
{{- $kept = printf `dyn(oldObject).spec.replicatedJobs.all(o, !(%s) || !dyn(object).spec.replicatedJobs.exists(j, j.name == o.name && !(%s)))` $old $new -}}
{{- else -}}
{{- $path := include "muster.templatePath" . -}}
{{- $kept = printf `!(%s && %s) || (%s && %s)` (include "muster.hasPath" (dict "object" "dyn(oldObject)" "path" $path)) (printf $gated (printf "dyn(oldObject).%s" $path)) (include "muster.hasPath" (dict "object" "dyn(object)" "path" $path)) (printf $gated (printf "dyn(object).%s" $path)) -}}
{{- end -}}
{{- $terms = append $terms (printf `(request.resource.resource != %q || %s)` $row.plural $kept) -}}
{{- end -}}
{{ join " && " $terms }}
{{- end }}

{{/* For each kind, whether its pods are gated or have the nodes of the admission. */}}
{{- define "muster.startsHeld" -}}
{{- $gated := `has(%[1]s.spec) && has(%[1]s.spec.schedulingGates) && %[1]s.spec.schedulingGates.exists(g, g.name == "muster.dev/admission")` -}}
{{- $pinned := `has(%[1]s.spec.affinity) && has(%[1]s.spec.affinity.nodeAffinity) && has(%[1]s.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution) && has(%[1]s.metadata) && has(%[1]s.metadata.labels) && "muster.dev/attempt" in %[1]s.metadata.labels` -}}
{{- $terms := list "true" -}}
{{- range .kinds -}}
{{- $row := include "muster.queuedKind" . | fromYaml -}}
{{- $held := "" -}}
{{- if eq (toString .) "TrainJob" -}}
{{- $held = `has(dyn(object).spec.runtimePatches) && dyn(object).spec.runtimePatches.exists(p, p.manager == "muster.dev/operator")` -}}
{{- else if eq (toString .) "JobSet" -}}
{{- $held = printf `dyn(object).spec.replicatedJobs.all(j, has(j.replicas) && j.replicas == 0 || %s)` (printf $gated "j.template.spec.template") -}}
{{- else -}}
{{- $path := include "muster.templatePath" . -}}
{{- $template := printf "dyn(object).%s" $path -}}
{{- $held = printf `%s && ((%s) || (%s))` (include "muster.hasPath" (dict "object" "dyn(object)" "path" $path)) (printf $gated $template) (printf $pinned $template) -}}
{{- end -}}
{{- $terms = append $terms (printf `(request.resource.resource != %q || (%s))` $row.plural $held) -}}
{{- end -}}
{{ join " && " $terms }}
{{- end }}

{{/* Path of the pod template of a kind that has one. */}}
{{- define "muster.templatePath" -}}
{{- if kindIs "string" . -}}
spec.template
{{- else -}}
{{ dig "podSet" "template" "spec.template" . }}
{{- end -}}
{{- end }}

{{/* Whether an object has a value at a path. */}}
{{- define "muster.hasPath" -}}
{{- $at := .object -}}
{{- $terms := list -}}
{{- range splitList "." .path -}}
{{- $at = printf "%s.%s" $at . -}}
{{- $terms = append $terms (printf "has(%s)" $at) -}}
{{- end -}}
{{ join " && " $terms }}
{{- end }}
