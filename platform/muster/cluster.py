"""What a cluster shows the engine and what the engine may ask of it.

Three clusters speak this: this host (`muster.local`), memory under a virtual clock (`muster.simulate`) and Kubernetes
(`muster_operator`). The engine decides, a cluster only observes and carries out, in the order it is told: the order of
writes is what makes a crash at any point harmless.

Some orders matter and others do not. A round comes as phases (`Round.phases`), each of writes to objects that do not
depend on one another (`ObjectWrites`); `Round.writes` is the same in one order that is always right. Whoever carries
out several writes at a time keeps to five rules:

1. A phase begins once the one before it is over. Within a phase objects may be written in any order and side by side;
   begin them in the order given where not all can be on their way at once, since the first are the most pressing.
2. Of one object the status comes first. Once it is acknowledged, pods may be created and stopped side by side, and
   events are recorded whenever there is time; a `RemoveJob` comes last. Where the only pod of a gang can tell all that
   the status says, a cluster may let its creation be both, and write the status later: where the pod is not created,
   the job was not admitted (rule 4).
3. A status of a job that is refused (Conflict; a job that is gone counts as refused) ends that object's writes and no
   other's of its phase, but no later phase begins. So nobody is told to leave for a hold that was not written, no pod
   of a victim is stopped before all victims are told, and nobody is admitted to room that was not given back.
4. Then tell the engine whose writes did not all happen (`Engine.recheck`), observe, and decide again at once. Statuses
   of queues and flavors are not guarded and never refused; a pod that exists already, a pod, queue or flavor that is
   gone, and an event that cannot be recorded, are no refusal either. Nor is a pod that the cluster does not create or
   stop: its job is looked at again after a pause, and nobody else waits for it.
5. `Round.afterwards` tells why gangs wait, and that they run; no other write waits for it. It may be written any time
   later, guarded like every status; a round that writes the same job voids it, and one that is refused is told to the
   engine (rule 4).

Whoever stops at the first refused write, of the flat order, keeps the rules too: this host and the simulation do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from muster import spec
from muster.model import NodeTaint, Resources

DRAIN_TAINT = "muster.dev/drain"
"""The key of the taint on a node that is drained: gangs on it checkpoint, leave and are queued again, and none comes,
whatever its pods tolerate."""
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
"""The key of the taint that Kubernetes has for a node that is down for good."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the cluster shows it. `allocatable` includes `pods`; `foreign` is what pods use that are not ours."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    not_ready_since: float | None = None
    unmanaged_usage: Resources = Resources()

    @property
    def draining(self) -> bool:
        """Whether gangs are to leave it."""
        return any(taint.key == DRAIN_TAINT for taint in self.taints)

    @property
    def out_of_service(self) -> bool:
        """Whether it was declared dead: what ran there runs no more, whatever its conditions say."""
        return any(taint.key == OUT_OF_SERVICE_TAINT for taint in self.taints)

    @property
    def schedulable(self) -> bool:
        """Whether a gang may be placed on it, whatever its pods tolerate."""
        return self.ready and not self.cordoned and not self.draining and not self.out_of_service


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the cluster shows it. Absent from the world means gone for good, its room free.

    phase `Lost`: its node is gone or unknown. `exit_code` is of the main container (128 + signal when a signal ended
    it). `log_tail` (at most 4 KiB) is filled in for failed pods. `failed_at` is when its first rank failed, where the
    cluster can tell: the pod itself ends after its other ranks, and is shown with `failed_at`, `exit_code` and
    `log_tail` even before that once another pod of its attempt has failed. `request` is what this very pod asks for,
    its slot included, whatever the job's roles say by now; empty where that is not known: then the role's is meant.
    `start_blocker`: what a Pending pod waits for, where the cluster can tell. Unschedulable: kube-scheduler cannot bind
    it, since a pod of somebody else came first, say. Image: its images are pulled, or cannot be. Volume: its volumes
    may not be mounted. Node: nothing but its node, which has not made a sandbox for it yet.
    """

    name: str
    job_uid: str
    role: str
    index: int
    attempt: int
    node: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]
    ready: bool = False
    deleting: bool = False
    exit_code: int | None = None
    reason: str = ""
    finished_at: float | None = None
    log_tail: str = ""
    failed_at: float | None = None
    request: Resources = Resources()
    pending_reason: Literal["", "Unschedulable", "Image", "Volume", "Node"] = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a job last said of itself: rank 0's heartbeat, the newest durable checkpoint. Times are Unix seconds."""

    at: float
    step: int
    step_changed_at: float  # when the step last changed
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    total_steps: int | None = None  # the last step, as far as it is known
    loss: float | None = None
    tokens_per_s: float | None = None  # of the whole job


@dataclass(frozen=True, slots=True)
class DecodeErrors:
    """Why queues and flavors cannot be read, by name. Such a queue is in the world as far as is known of it, and admits
    nothing; such a flavor is not."""

    queues: Mapping[str, str] = field(default_factory=dict)
    flavors: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.queues or self.flavors)


NO_DECODE_ERRORS = DecodeErrors()


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Everything the engine decides from. What did not change since the last observation keeps its identity."""

    now: float
    nodes: tuple[NodeView, ...]
    flavors: tuple[spec.Flavor, ...]
    queues: tuple[spec.Queue, ...]
    jobs: tuple[spec.TrainingJob, ...]
    pods: Mapping[str, tuple[PodView, ...]]  # by job uid; every pod of a job, deleting ones too
    heartbeats: Mapping[str, Heartbeat] = field(default_factory=dict)  # by job uid
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # labels by name
    priority_classes: Mapping[str, int] = field(default_factory=dict)  # values by name
    pod_rejections: Mapping[str, str] = field(default_factory=dict)  # why a job's pods would be refused, by job uid
    decode_errors: DecodeErrors = field(default_factory=lambda: NO_DECODE_ERRORS)


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace a job's status, if its resourceVersion is still `resource_version`; refused (Conflict) if it is not."""

    job_uid: str
    status: spec.TrainingJobStatus
    resource_version: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create one pod of the job's current attempt on `node`; that it exists already is success."""

    job_uid: str
    name: str
    role: str
    index: int
    replicas: int  # pods of the role in this attempt
    attempt: int
    node: str
    flavor: str
    rank0_node: str  # the node of pod 0 of this role


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Stop a pod: SIGTERM, `grace_s`, SIGKILL. `force`: it is gone with its node, forget it."""

    job_uid: str
    name: str
    grace_s: float
    force: bool = False


@dataclass(frozen=True, slots=True)
class WriteQueueStatus:
    """Replace a queue's status."""

    queue: str
    status: spec.QueueStatus


@dataclass(frozen=True, slots=True)
class WriteFlavorStatus:
    """Replace a flavor's status."""

    flavor: str
    status: spec.FlavorStatus


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """An event of a job, for `kubectl describe` and `muster describe`."""

    job_uid: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    preemptor: str | None = None  # uid of the job that an admitted job is evicted or shrunk for


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Delete a finished job whose time is over, or finish the deletion a user asked for (its pods are gone)."""

    job_uid: str


Write: TypeAlias = WriteStatus | CreatePod | DeletePod | WriteQueueStatus | WriteFlavorStatus | RecordEvent | RemoveJob


@dataclass(frozen=True, slots=True)
class ObjectWrites:
    """What one phase of a round writes of one job, in order: its status, then pods and events, its removal last.

    `job_uid` is empty for the status of a queue or a flavor. A job is in two phases of a round at most: a victim's
    status in one, what follows from it in the next. No job's status is written twice in a round.
    """

    job_uid: str
    writes: tuple[Write, ...]


WritePhase: TypeAlias = tuple[ObjectWrites, ...]
"""Writes to objects that do not depend on one another, the most pressing first."""


class Cluster(Protocol):
    """Where jobs live and pods run."""

    def observe(self) -> ObservedState:
        """The world now, this cluster's own acknowledged writes included."""
        ...

    def apply(self, writes: Sequence[Write]) -> None:
        """Carry out the writes in order. Raises `muster.errors.Conflict` when a guarded write is refused: the rest is
        not begun and the engine observes anew. Raises `muster.errors.ClusterError` when it cannot be reached."""
        ...
