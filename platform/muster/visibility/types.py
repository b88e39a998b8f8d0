"""The items of the read API, group visibility.muster.dev. The OpenAPI document is generated from them and their lists.

Times are Unix seconds in Python and RFC 3339 in JSON; amounts are Kubernetes quantities by resource name.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import Field

from muster.api.spec import LastFailure, Phase, ProgressStatus, RolePlacementStatus, StopStatus, TimeSpentStatus
from muster.api.spec.fields import Condition, StatusModel, Time
from muster.usage.report import UsageGroup

GROUP = "visibility.muster.dev"
VERSION = "v1alpha1"
API_VERSION: Final = "visibility.muster.dev/v1alpha1"
BASE_PATH = f"/apis/{API_VERSION}"

ApiVersion: TypeAlias = Literal["visibility.muster.dev/v1alpha1"]


class ItemMeta(StatusModel):
    """The part of Kubernetes' ObjectMeta that items have."""

    name: str
    """Name of the object."""
    namespace: str | None = None
    """Namespace of the object; not set for queues and nodes."""
    uid: str = ""
    """Uid of the object; empty for queues and nodes."""
    creation_timestamp: Time | None = None
    """Time at which the object was created."""


class DataSource(StatusModel):
    """Which process answered, and how recent its data are."""

    identity: str
    """Name of the process: that of the operator in its Lease, or the daemon."""
    leading: bool
    """Whether it makes the decisions. Otherwise it is a standby: positions and reasons are those that the leader wrote
    last into the status of the jobs, at most once a minute, and fair shares are not known."""
    observed_at: Time
    """Time of the state of objects that the answer was made from."""
    cycle: str = ""
    """The scheduling cycle whose result the answer contains; of a standby the newest one whose writes it has seen.
    Empty: none yet."""
    cycle_at: Time | None = None
    """Time of that cycle; not set by a standby."""


class PageMeta(StatusModel):
    """The part of Kubernetes' ListMeta that lists have."""

    resource_version: str = ""
    """Always empty: lists cannot be watched."""
    continue_token: str = Field(default="", alias="continue")
    """Value of the parameter `continue` for the next page; empty on the last one. The pages are not one snapshot:
    an object that exists all the time is in exactly one of them."""
    remaining_item_count: int = 0
    """Number of items on the following pages."""


class QueueResources(StatusModel):
    """Quota and usage of one flavor in a queue, by resource."""

    flavor: str
    """Name of the flavor."""
    guaranteed: dict[str, str] = {}
    """The queue's own quota."""
    limit: dict[str, str] = {}
    """Maximum usage; a resource without a limit is absent."""
    lend: dict[str, str] = {}
    """The part of its own quota that others may borrow; absent: all of it."""
    used: dict[str, str] = {}
    """Charged usage of the queue and all queues below it."""
    borrowed: dict[str, str] = {}
    """The part of the usage above the guarantee."""
    available: dict[str, str] = {}
    """What the queue can still admit; negative if more is admitted than its quota allows now."""


class QueueSummary(StatusModel):
    """A queue with its usage. Lists have parents before their children."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["QueueSummary"] = "QueueSummary"
    """The kind."""
    metadata: ItemMeta
    """Name of the queue."""
    parent: str | None = None
    """Name of the parent queue; not set for a root."""
    depth: int = 0
    """Number of queues above it."""
    active: bool
    """Whether it admits jobs."""
    reason: str
    """Reason of its condition Active, in one word."""
    message: str
    """Details of that reason."""
    overcommitted: str | None = None
    """What exceeds its guarantee, in a sentence; not set if nothing does."""
    weight: float
    """Fair-share weight among siblings."""
    share: float
    """Decayed usage per unit of the root's quota and of the weight; 0 if nothing was used, and of a standby."""
    pending: int
    """Number of pending jobs in this queue and below."""
    admitted: int
    """Number of admitted jobs in this queue and below."""
    resources: list[QueueResources] = []
    """Quota and usage by flavor."""


class PendingJob(StatusModel):
    """A job that waits in a queue, and why."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["PendingJob"] = "PendingJob"
    """The kind."""
    metadata: ItemMeta
    """Name, namespace and uid of the job."""
    object_kind: str = "TrainingJob"
    """The kind of the job: TrainingJob, or that of another object that queues."""
    queue: str
    """Name of its queue."""
    priority: int | None = None
    """Effective priority; not set while the value of its PriorityClass is unknown."""
    reason: str
    """Why it waits, in one word; see docs/concepts/scheduling.md."""
    message: str
    """The same with numbers."""
    position: int | None = None
    """Position in its queue; 1 is the first. Not set for a job that cannot start until an object is edited."""
    estimated_start: Time | None = None
    """Estimated start time, from the declared run times of running jobs."""
    submitted_at: Time | None = None
    """Time of the first submission."""
    requeue_after: Time | None = None
    """End of its backoff."""
    eviction: Condition | None = None
    """Why and since when it waits again, if it was evicted, such as preempted."""


class JobSummary(StatusModel):
    """A job with its current state. Neither its pod templates nor its environment are part of it."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["JobSummary"] = "JobSummary"
    """The kind."""
    metadata: ItemMeta
    """Name, namespace and uid of the job."""
    object_kind: str = "TrainingJob"
    """The kind of the job: TrainingJob, or that of another object that queues."""
    queue: str
    """Name of its queue."""
    priority: int | None = None
    """Effective priority; not set while the value of its PriorityClass is unknown."""
    phase: Phase
    """The state in one word."""
    reason: str = ""
    """Reason for the state, in one word."""
    message: str = ""
    """Details of the reason."""
    position: int | None = None
    """Position in its queue, while it is pending; 1 is the first."""
    estimated_start: Time | None = None
    """Estimated start time, while it is pending."""
    min_pods: int
    """Smallest number of pods with which it starts."""
    max_pods: int
    """Number of pods that it asks for."""
    pods_wanted: int = 0
    """Number of pods of the present attempt."""
    pods_ready: int = 0
    """Number of them that are ready."""
    nodes: list[str] = []
    """Nodes of its pods; of a finished job those of its last attempt."""
    submitted_at: Time | None = None
    """Time of the first submission."""
    admitted_at: Time | None = None
    """Start of the current admission."""
    started_at: Time | None = None
    """Time at which all pods of the attempt were ready."""
    finished_at: Time | None = None
    """Time at which its last process ended."""
    ran_seconds: int = 0
    """Run time of earlier attempts, in seconds; the current one has run since `startedAt`."""
    attempt: int = 0
    """Number of the attempt, counted from 0."""
    restarts: int = 0
    """Number of restarts that count towards `maxRestarts`."""
    eviction: Condition | None = None
    """Why and since when it is stopped in order to wait again, such as preempted; not set once it is admitted again."""
    progress: ProgressStatus | None = None
    """The last reported progress; not set on one host."""
    conditions: list[Condition] = []
    """Conditions of the job's status; only in the answer for one job."""
    placement: list[RolePlacementStatus] = []
    """The nodes by role; only in the answer for one job."""
    last_failure: LastFailure | None = None
    """The last failure; only in the answer for one job."""
    last_stop: StopStatus | None = None
    """The last attempt that was stopped before its end; only in the answer for one job."""
    time_spent: TimeSpentStatus | None = None
    """What the time since the submission was spent on; only in the answer for one job."""
    error: str = ""
    """Of a failed job, the line of the failed pod's log that best explains it, at most 300 characters."""


class CurvePoint(StatusModel):
    """What rank 0 reported of one step."""

    step: int
    """The step."""
    loss: float | None = None
    """Its loss; not set if none was reported."""
    step_seconds: float | None = None
    """Its time in seconds; not set if none was reported."""


class JobCurve(StatusModel):
    """Loss and step time of a running job over steps, as its rank 0 has reported them."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["JobCurve"] = "JobCurve"
    """The kind."""
    metadata: ItemMeta
    """Name, namespace and uid of the job."""
    points: list[CurvePoint] = []
    """At most 300 steps, evenly chosen, the newest included; of a long run the last 8 MiB of metrics. Empty before the
    first step."""


class PodReference(StatusModel):
    """A pod."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""


class JobReference(StatusModel):
    """A job."""

    namespace: str
    """Its namespace."""
    name: str
    """Its name."""


class NodeSummary(StatusModel):
    """A node with what gangs use of it."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["NodeSummary"] = "NodeSummary"
    """The kind."""
    metadata: ItemMeta
    """Name of the node."""
    flavor: str | None = None
    """Name of its flavor; not set if no flavor matches, or more than one."""
    virtual: bool = False
    """Whether it is a virtual node of one host."""
    ready: bool
    """Whether its condition Ready is true."""
    cordoned: bool = False
    """Whether it takes no new pods."""
    draining: bool = False
    """Whether jobs must leave it."""
    labels: dict[str, str] = {}
    """Labels of the node."""
    topology: dict[str, str] = {}
    """Its topology domains by level, such as block and rack, in the order of its flavor's levels, largest first; a
    level whose label the node does not have is absent."""
    allocatable: dict[str, str] = {}
    """What pods can use in total."""
    used: dict[str, str] = {}
    """Requests of running gangs."""
    pod_count: int = 0
    """Number of unfinished pods of jobs, of all namespaces."""
    pods: list[PodReference] = []
    """These pods, as far as the client may read jobs of their namespaces."""
    job_count: int | None = None
    """Number of unfinished jobs that are placed on the node, of all namespaces, also those whose pods stop."""
    jobs: list[JobReference] = []
    """These jobs, as far as the client may read jobs of their namespaces."""


class Preemption(StatusModel):
    """A job that was evicted or shrunk for another one. The list begins with the newest."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["Preemption"] = "Preemption"
    """The kind."""
    metadata: ItemMeta
    """Name, namespace and uid of the preempted job."""
    queue: str
    """Its queue."""
    reason: str
    """Reclaimed or Preempted."""
    message: str
    """The same with the name of the job that got the capacity."""
    at: Time
    """Time of the decision."""
    resized: bool = False
    """Whether it was shrunk rather than evicted."""


class UsagePoint(StatusModel):
    """Usage of one step of the period."""

    at: Time
    """Start of the step."""
    hours: float
    """Resource-hours: the amount times the hours for which it was charged; cores of cpu."""


class UsageSummary(StatusModel):
    """What jobs of a queue, namespace or user were charged for, of one resource of one flavor (docs/tasks/usage.md)."""

    api_version: ApiVersion = API_VERSION
    """Group and version."""
    kind: Literal["UsageSummary"] = "UsageSummary"
    """The kind."""
    metadata: ItemMeta
    """Name of the queue, namespace or user; empty for jobs without a user."""
    by: UsageGroup
    """What the name is of."""
    flavor: str
    """Name of the flavor."""
    resource: str
    """Name of the resource: cpu, or an extended resource such as a GPU."""
    hours: float
    """Resource-hours in the whole period."""
    points: list[UsagePoint] = []
    """The same by step, oldest first; steps without usage are absent."""


Item: TypeAlias = QueueSummary | PendingJob | JobSummary | JobCurve | NodeSummary | Preemption | UsageSummary
