"""The kinds, one row each: where an object has its `suspend`, its pod templates and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

QUEUE_LABEL: Final = "muster.dev/queue"
"""Label of an object: it queues there."""
NAMESPACE_LABEL: Final = "muster.dev/queueing"
"""Label of a namespace whose labelled objects queue, with value `enabled`."""
ATTEMPT_LABEL: Final = "muster.dev/attempt"
"""Label of the pods of an admission: the attempt in the status when their object was resumed."""
OBJECT_ANNOTATION: Final = "muster.dev/object"
"""Annotation of the pods of an object whose controller creates them through other objects: UID/POD SET/NAME."""
GATE: Final = "muster.dev/admission"
"""Scheduling gate of pods that get their node one by one."""
SUSPEND_PATH: Final = "spec.suspend"
"""Where most kinds have the field that holds them."""
SUSPEND_ANNOTATION: Final = "muster.dev/suspend"
"""Annotation of an object whose user wants it to give everything back and to wait: `true`."""
CANCEL_ANNOTATION: Final = "muster.dev/cancel"
"""Annotation of an object that its user wants to end: `true`."""
PRIORITY_ANNOTATION: Final = "muster.dev/priority"
"""Annotation with the priority of an object in its queue."""
START_TIMEOUT_ANNOTATION: Final = "muster.dev/start-timeout-seconds"
"""Annotation with the seconds within which all pods must be ready."""


@dataclass(frozen=True, slots=True)
class PodSetRow:
    """Pods of one template. `template`: path of the PodTemplateSpec; `counts`: paths of numbers of pods, of which the
    least counts that is set (none: one pod); `total`: path of the number of pods that have to complete, `completed` of
    those that have; `each`: path of a list with a pod set for each of its items, whose `name` it has: then all other
    paths are below the item; `times`: path of a number by which the pods are multiplied; `later`: path of what is set
    where these pods are created after others were ready or have completed."""

    template: str = "spec.template"
    counts: tuple[str, ...] = ()
    total: str = ""
    completed: str = ""
    name: str = "pods"
    each: str = ""
    times: str = ""
    later: str = ""


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind. `suspend`: path of the field that holds an object; `complete` and `failed`: types of the conditions
    that end it; `max_runtime`: path of the seconds after which its controller ends it, if it has one; `start_time`:
    path of a time that must be empty before a template may change, if there is one; `sets_node_affinity`: the node
    affinity of its templates may change while it is suspended; `nested`: its controller creates its pods through other
    objects; `shown_by`: the kind of the object that its controller creates suspended, under the same name, and that has
    its pod templates; `runtime_patches`: path of the list of patches of these templates."""

    group: str
    version: str
    plural: str
    kind: str
    pod_sets: tuple[PodSetRow, ...]
    suspend: str = SUSPEND_PATH
    complete: str = "Complete"
    failed: str = "Failed"
    max_runtime: str = ""
    start_time: str = ""
    sets_node_affinity: bool = False
    nested: bool = False
    shown_by: KindRow | None = None
    runtime_patches: str = ""

    @property
    def api_version(self) -> str:
        """As in objects: batch/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version


BATCH_JOB: Final = KindRow(
    group="batch",
    version="v1",
    plural="jobs",
    kind="Job",
    pod_sets=(PodSetRow(counts=("spec.parallelism",), total="spec.completions", completed="status.succeeded"),),
    max_runtime="spec.activeDeadlineSeconds",
    start_time="status.startTime",
    sets_node_affinity=True,
)
JOB_SET: Final = KindRow(
    group="jobset.x-k8s.io",
    version="v1alpha2",
    plural="jobsets",
    kind="JobSet",
    pod_sets=(
        PodSetRow(
            each="spec.replicatedJobs",
            template="template.spec.template",
            counts=("template.spec.parallelism", "template.spec.completions"),
            times="replicas",
            later="dependsOn",
        ),
    ),
    complete="Completed",
    nested=True,
)
TRAIN_JOB: Final = KindRow(
    group="trainer.kubeflow.org",
    version="v1alpha1",
    plural="trainjobs",
    kind="TrainJob",
    pod_sets=JOB_SET.pod_sets,
    max_runtime="spec.activeDeadlineSeconds",
    nested=True,
    shown_by=JOB_SET,
    runtime_patches="spec.runtimePatches",
)
KINDS: Final = (BATCH_JOB, JOB_SET, TRAIN_JOB)
"""The kinds that Muster knows."""
