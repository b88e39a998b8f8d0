"""The interface between the engine and a cluster: nodes and pods as they are observed, and what is written.

There are three clusters: this host (`muster.local`), the simulation in memory with a virtual clock (`muster.simulate`)
and Kubernetes (`muster_operator`). The engine decides; a cluster only observes (`muster.workload.observed`) and applies
writes in the given order, which makes a crash at any point harmless.

A cycle's writes come in phases (`CycleResult.phases`), each of writes to independent objects (`ObjectWrites`);
`CycleResult.writes` has the same in one order that is always valid. A cluster that writes concurrently must follow
five rules:

1. A phase begins once the one before it is complete. Within a phase objects may be written in any order and
   concurrently; if not all at once, in the given order, since the first are the most urgent.
2. Of one object the status comes first. Once it is acknowledged, the object is patched, then pods may be created and
   stopped concurrently, and events are recorded at any time; a `RemoveJob` comes last.
3. A refused status of a job (Conflict; a job that was removed counts as refused) ends the writes of that object only,
   but no later phase begins. So no victim is evicted for a nomination that was not written, no pod of a victim is
   stopped before all victims are marked, and no gang is admitted to capacity that was not released.
   A job whose status is refused may be paused (`ObservedState.paused`), so that it does not stop the later phases of
   every cycle. A cycle writes nothing of a paused job: it is not preempted either. Where a cluster refuses one change
   of a job and may accept others, `ObservedState.refused` has that change until the cluster would accept it.
4. Then pass the jobs whose writes did not all succeed to `Engine.recheck`, observe, and run a cycle at once. Statuses
   of queues and flavors are not guarded and never refused; a pod that exists already, a pod, queue or flavor that was
   removed, and an event that cannot be recorded, do not count as refused. Nor does a pod that the cluster does not
   create or stop: its job is processed again after a pause, and no other job waits for it.
5. `CycleResult.deferred` has why gangs wait, and that they run; no other write depends on it. It may be written at any
   later time, guarded like every status; a cycle that writes the same job replaces it, and a refused one is passed to
   the engine (rule 4).

Stopping at the first refused write of the flat order satisfies the rules too: this host and the simulation do that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from muster.api import spec
from muster.model import NodeTaint, Resources

VIRTUAL_NODE_LABEL = "muster.dev/virtual"
"""The label of a virtual node of this host."""

DRAIN_TAINT = "muster.dev/drain"
"""The key of the taint on a node that is drained: gangs on it checkpoint, stop and are requeued, and no gang is
placed on it, whatever its pods tolerate."""
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"
"""The key of Kubernetes' taint for a node that is shut down and will not come back with its pods."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """An observed node. `allocatable` includes `pods`; `unmanaged_usage`: what pods not managed by Muster use;
    `unhealthy_devices`: extended resources, such as GPUs, that the node has and that cannot be allocated."""

    name: str
    allocatable: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    ready: bool = True
    cordoned: bool = False
    not_ready_since: float | None = None
    unmanaged_usage: Resources = Resources()
    unhealthy_devices: Resources = Resources()

    @property
    def draining(self) -> bool:
        return any(taint.key == DRAIN_TAINT for taint in self.taints)

    @property
    def out_of_service(self) -> bool:
        """Whether it is marked out of service: its pods no longer run, whatever its conditions are."""
        return any(taint.key == OUT_OF_SERVICE_TAINT for taint in self.taints)

    @property
    def schedulable(self) -> bool:
        """Whether a gang may be placed on it, whatever its pods tolerate."""
        return self.ready and not self.cordoned and not self.draining and not self.out_of_service


@dataclass(frozen=True, slots=True)
class PodView:
    """An observed pod. A pod that is not observed no longer exists, and its capacity is free.

    phase `Lost`: its node is deleted or unknown. `exit_code` is of the main container (128 + signal when a signal ended
    it). `log_tail` (at most 4 KiB) is filled in for failed pods. `failed_at` is when its first rank failed, if
    known: the pod itself ends after its other ranks, and has `failed_at`, `exit_code` and `log_tail` even before that
    once another pod of its attempt has failed. `request` is the request of this pod, its slot included, whatever the
    job's roles are now; empty if unknown: then the role's applies. `pending_reason`: what a Pending pod waits for, if
    known. Unschedulable: kube-scheduler cannot bind it, for example because another pod took the capacity. Image: its
    images are pulled, or cannot be. Volume: its volumes are not mounted. Node: its node has not created its sandbox.
    `grace_s`: seconds between SIGTERM and SIGKILL of a deleting pod, if known.
    `never_bound`: it was deleted before kube-scheduler bound it, and only its finalizers keep it: it can never run.
    `rejected`: it Failed because its node's kubelet did not accept it, and no container has started; `reason` and
    `message` are the kubelet's. `accepted`: the kubelet has accepted it. `message` also says why a pod is disrupted.
    `gated`: Muster's scheduling gate keeps it from being bound.
    `charged`: what its queue is charged for it while its job is not admitted; nothing for a pod that a user has made
    up. None: its request.
    `tombstone`: it has ended and was deleted, and is shown until a `DeletePod`, since its end may complete its job.
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
    grace_s: float | None = None
    never_bound: bool = False
    rejected: bool = False
    accepted: bool = False
    message: str = ""
    gated: bool = False
    tombstone: bool = False
    charged: Resources | None = None

    @property
    def is_made_up(self) -> bool:
        """Whether neither Muster nor a controller that it has started created it, as far as is known."""
        return self.charged is not None and not self.charged

    @property
    def holds_capacity(self) -> bool:
        """Whether it takes capacity of its node, or may: it has not ended, and may still run."""
        return self.phase in ("Pending", "Running", "Lost") and not self.never_bound


@dataclass(frozen=True, slots=True)
class RunTime:
    """Into what the records of a run folder divide the time of its pods, as of `at`: from its first `attempt` with
    records on, whose steps begin with `first_step`, until `last_step`. Milliseconds by cause
    (`muster.usage.causes`)."""

    attempt: int
    first_step: int
    last_step: int
    at: float
    milliseconds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a job, from rank 0, and its newest durable checkpoint. Times are Unix seconds."""

    at: float
    step: int
    step_changed_at: float  # when the step last changed
    attempt: int | None = None  # of the process that wrote it, if known
    has_stepped: bool = True  # its attempt has made a step
    checkpoint_step: int | None = None
    checkpoint_at: float | None = None
    total_steps: int | None = None  # the last step, as far as it is known
    loss: float | None = None
    tokens_per_s: float | None = None  # of the whole job
    step_time_s: float | None = None  # median of recent steps
    eta_s: float | None = None  # seconds to the last step
    collectives_per_step: float | None = None
    collective_bytes_per_step: float | None = None
    run_time: RunTime | None = None


@dataclass(frozen=True, slots=True)
class DecodeErrors:
    """Why queues and flavors cannot be decoded, by name. Such a queue is in the state as far as it is known, and admits
    nothing; such a flavor is not."""

    queues: Mapping[str, str] = field(default_factory=dict)
    flavors: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.queues or self.flavors)

    def flavor_names(self, decoded: Iterable[spec.Flavor]) -> frozenset[str]:
        """The names of all flavors, of which `decoded` can be decoded."""
        return frozenset(flavor.metadata.name for flavor in decoded).union(self.flavors)


NO_DECODE_ERRORS = DecodeErrors()


RefusedChange: TypeAlias = Literal["Nomination", "Admission", "Growth", "Eviction"]
"""A change of a job's status that other jobs' capacity depends on. Eviction: evicted or shrunk for another job."""


@dataclass(frozen=True, slots=True)
class RefusedStatus:
    """A change of a job's status that the cluster refuses. `message` says why; `invalid`: trying again will not help
    before a user changes something; `beneficiary`: uid of the job that it was to be evicted for."""

    job_uid: str
    change: RefusedChange
    message: str
    invalid: bool = True
    beneficiary: str = ""


@dataclass(frozen=True, slots=True)
class OrphanedPod:
    """A pod that has not ended, of a job that does not exist any more, created for `queue`. `bound`: it is bound to its
    node, whose `unmanaged_usage` includes what it uses. `grace_s`: its own grace period; that of `view` is the one with
    which it is being deleted."""

    namespace: str
    job: str
    queue: str
    view: PodView
    bound: bool
    grace_s: float
    created_at: float


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace a job's status, if its resourceVersion is still `resource_version`; refused (Conflict) if it is not.

    A status that gives up capacity may be written also if only metadata or spec changed since `old` was observed.
    """

    job_uid: str
    status: spec.QueueingStatus
    resource_version: str
    old: spec.QueueingStatus | None = None


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create one pod of the job's current attempt on `node`; success if it exists already."""

    job_uid: str
    name: str
    role: str
    index: int
    replicas: int  # pods of the role in this attempt
    attempt: int
    node: str
    flavor: str
    rank0_node: str  # the node of pod 0 of this role
    grace_s: float  # with which it is stopped, unless its queue changes


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Stop a pod: SIGTERM, `grace_s`, SIGKILL. `force`: its node is lost, delete the object only."""

    job_uid: str
    name: str
    grace_s: float
    force: bool = False


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Merge `patch` into the object of a job, or into its `subresource`; a list has the operations of a JSON patch. A
    controller of its kind creates its pods: this starts or stops them. Refused (Conflict) if the object was changed
    since it was observed, other than by the status written before it."""

    job_uid: str
    patch: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class UngatePod:
    """Give a gated pod its node and the tolerations of its flavor, and take Muster's scheduling gate away."""

    job_uid: str
    name: str
    node: str
    flavor: str


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
    """Delete a finished job whose TTL has expired, or finish a requested deletion (its pods are deleted)."""

    job_uid: str


Write: TypeAlias = (
    WriteStatus
    | PatchObject
    | CreatePod
    | UngatePod
    | DeletePod
    | WriteQueueStatus
    | WriteFlavorStatus
    | RecordEvent
    | RemoveJob
)


@dataclass(frozen=True, slots=True)
class ObjectWrites:
    """What one phase of a cycle writes of one job, in order: its status, then pods and events, its removal last.

    `job_uid` is empty for the status of a queue or a flavor. A job is in at most two phases of a cycle: a victim's
    status in one, its pods in the next. The status of a job is written at most once per cycle.
    """

    job_uid: str
    writes: tuple[Write, ...]


WritePhase: TypeAlias = tuple[ObjectWrites, ...]
"""Writes to independent objects, the most urgent first."""
