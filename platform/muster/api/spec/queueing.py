"""The status that queueing keeps of a workload, whatever its kind: written only by the engine."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from muster.api.spec.fields import Condition, ListMapKey, StatusModel, Time
from muster.api.spec.start import DependencyStatus


class NodePods(StatusModel):
    """Pods of a role on one node."""

    node: str
    """Name of the node."""
    indexes: str
    """Indexes of the pods, e.g. "0-7" or "3"."""


class RolePlacementStatus(StatusModel):
    """The nodes of one role's pods."""

    role: str
    """Name of the role."""
    flavor: str = ""
    """Name of the flavor of the nodes."""
    nodes: list[NodePods] = []
    """The nodes, ordered by pod index."""


class NominationStatus(StatusModel):
    """Capacity nominated for this job: see docs/reference/glossary.md."""

    placement: list[RolePlacementStatus]
    """The nominated nodes."""
    victims: list[str] = []
    """Uids of the jobs that are evicted for this job."""
    expires_at: Time
    """Time at which the nomination expires."""


class EvictionStatus(StatusModel):
    """The eviction of this job for another one, and its deadline."""

    beneficiary: str = Field(alias="for")
    """Uid of the job that gets the capacity."""
    queue: str = ""
    """Queue of that job."""
    reason: str = ""
    """Reason for the eviction, in one word."""
    deadline: Time
    """Time at which pods that still run are killed."""


class PastEvictionStatus(StatusModel):
    """An eviction for another job, within the last hour when it was recorded."""

    at: Time
    """When it began."""
    queue: str
    """Queue of the job that it was for."""
    job_queue: str = ""
    """Queue that this job was in. Evictions in another queue than the present one do not count."""


class FinishedPods(StatusModel):
    """Pods of a role that have completed."""

    role: str
    """Name of the role."""
    indexes: str
    """Indexes of the pods, e.g. "0-3,7"."""


class BlamedNode(StatusModel):
    """A node that this job avoids temporarily."""

    node: str
    """Name of the node."""
    until: Time
    """Time until which the job avoids the node."""
    at: Time | None = None
    """Time of the failure."""
    reason: str = ""
    """Reason for the failure, in one word: StartTimeout, PodRejected, PodUnsuitable or RestartElsewhere.

    PodUnsuitable: a kubelet rejected a pod for a reason that the pod itself may cause, such as SysctlForbidden."""


class FlavorAmounts(StatusModel):
    """Amounts of one flavor."""

    flavor: str
    """Name of the flavor."""
    amounts: dict[str, str]
    """Amounts by resource: cpu and extended resources such as GPUs."""


class UsageSegment(StatusModel):
    """A period in which the same amounts were charged to the same queue and user."""

    queue: str
    """Name of the queue."""
    user: str = ""
    """Value of the job's label `muster.dev/user`; empty without one."""
    since: Time
    """Start of the period, in whole milliseconds."""
    until: Time | None = None
    """End of the period; not set while it lasts."""
    flavors: list[FlavorAmounts] = []
    """The amounts, by flavor."""


class JobUsageStatus(StatusModel):
    """What the job was charged for: see docs/tasks/usage.md."""

    first: int = 0
    """Number of the first segment of `ended`, counted from 0; earlier ones are in the durable record."""
    ended: Annotated[list[UsageSegment], Field(max_length=100)] = []
    """Segments that have ended, oldest first. Those that are in the durable record are removed with the next change."""
    current: UsageSegment | None = None
    """The segment that has not ended; not set while the job is not admitted."""


class RunTimeStatus(StatusModel):
    """What pods spent their time on, by the records in their run folder."""

    attempt: int
    """The first attempt with records there."""
    first_step: int = 0
    """Its first step."""
    last_step: int = 0
    """The last step of the newest attempt with records there."""
    at: Time
    """Until when."""
    milliseconds: dict[str, int] = {}
    """By cause."""


class TimeSpentStatus(StatusModel):
    """What the time since the submission was spent on: see docs/tasks/goodput.md."""

    cause: str
    """What it is spent on now: waiting/REASON, start, running, recovery or stopping; empty once the job has ended."""
    since: Time
    """Since when."""
    milliseconds: dict[str, int] = {}
    """What it was spent on until then, by cause; they sum to the time from the submission to `since`."""
    runs: Annotated[list[RunTimeStatus], Field(max_length=16)] = []
    """Into what `running`, with start, recovery and stopping of pods, is divided: one entry for each run folder that
    attempts shared. Updated at most once a minute."""


Phase: TypeAlias = Literal[
    "Pending", "Admitted", "Running", "Suspended", "Terminating", "Succeeded", "Failed", "Cancelled"
]
TERMINAL_PHASES: tuple[Phase, ...] = ("Succeeded", "Failed", "Cancelled")
"""Final phases."""


class QueueingStatus(StatusModel):
    """`conditions` is authoritative; `phase` and `reason` are derived from it."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    phase: Phase = "Pending"
    """The state in one word, derived from `conditions` and `finishedAt`. Terminating: the job is cancelled and
    processes still run."""
    reason: str = ""
    """Reason for the current state, in one word, derived from `conditions`."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Admitted, PodsReady, Evicted, Suspended, Stalled while a job makes no step for long, Terminating while pods of a
    job that has ended or is suspended have not, and one of Complete, Failed and Cancelled once the outcome is
    decided."""
    dependencies: list[DependencyStatus] = []
    """Jobs of `dependsOn` that have ended."""
    priority: int | None = None
    """The effective priority: that of the spec, or the value of its PriorityClass."""
    queue_position: int | None = None
    """Position in the queue; 1 is the first."""
    estimated_start: Time | None = None
    """Estimated start time, from the declared run times of running jobs."""
    placement: list[RolePlacementStatus] = []
    """The nodes of the pods."""
    nomination: NominationStatus | None = None
    """Capacity nominated for this job, until it is admitted or the nomination expires."""
    eviction: EvictionStatus | None = None
    """Set while the job is evicted for another one."""
    evictions: list[PastEvictionStatus] = []
    """The last evictions for other jobs, at most 64. With 4 in the last hour it is not evicted for another, unless they
    were for jobs of its own queue or team: see docs/concepts/scheduling.md."""
    submitted_at: Time | None = None
    """Time of the first submission; kept across evictions."""
    borrowing_head_since: Time | None = None
    """For a job that has to borrow: when it became the first such job that waits in its root queue and flavor. The
    delay after which its reservation binds all jobs counts from here. Kept while it runs, until it is requeued or
    suspended. Ends too when another takes its place because a job of a higher priority in its queue precedes it, and
    when its queue's delay is set to 0."""
    admitted_at: Time | None = None
    """Start of the current admission."""
    max_runtime_seconds: int | None = None
    """The maximum run time with which the job was admitted, in seconds."""
    started_at: Time | None = None
    """Time at which all pods of the attempt were ready."""
    ran_seconds: int = 0
    """Total run time of earlier attempts, in seconds; the current one has run since `startedAt`."""
    finished_at: Time | None = None
    """Time at which the last process ended. The condition has the time at which the outcome was decided."""
    resized_at: Time | None = None
    """Time of the last change of the size of an elastic job."""
    requeue_after: Time | None = None
    """End of the backoff; the job is not admitted earlier."""
    attempt: int = 0
    """Number of the current attempt, counted from 0."""
    restarts: int = 0
    """Number of restarts that count towards `maxRestarts`."""
    start_retries: int = 0
    """Number of consecutive start timeouts; limited by `maxStartRetries`."""
    rejections: int = 0
    """Number of consecutive starts in which a kubelet rejected a pod."""
    node_losses: int = 0
    """Number of restarts after lost nodes; they have a separate limit."""
    pods_wanted: int = 0
    """Number of pods of the attempt."""
    pods_ready: int = 0
    """Number of pods of the attempt that are ready."""
    finished_pods: list[FinishedPods] = []
    """Pods of the attempt that have completed while others still run; they may be deleted."""
    blamed_nodes: list[BlamedNode] = []
    """Nodes that the job avoids."""
    usage: JobUsageStatus | None = None
    """What the job was charged for since its creation, as far as it is not in the durable record yet."""
    time_spent: TimeSpentStatus | None = None
    """What the time since the submission was spent on."""
    last_cycle: str | None = None
    """The scheduling cycle that wrote the status last; Events and the operator's log name it too."""
