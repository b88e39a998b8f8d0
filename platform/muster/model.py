"""The planner's input and output as frozen values: no Kubernetes object, no clock, no file.

Code that builds a `Snapshot` keeps the identity of everything that did not change since the last one, so that the
planner finds differences by comparing references.

Units: `cpu` in millicores, `memory` and `ephemeral-storage` in bytes, every other resource in whole units
(`nvidia.com/gpu`, `pods`). Times are seconds on the clock of `Snapshot.now`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MAX_AMOUNT = 2**62
"""The largest amount of anything: sums and differences of two still fit 64 bits."""
MAX_EVICTIONS_PER_HOUR, EVICTION_WINDOW_S = 4, 3600.0
"""A gang that was evicted so often for other gangs in the last hour is not evicted for another (see
`muster.scheduling.eviction_limits`)."""
MAX_RECORDED_EVICTIONS = 64
"""Enough for trees of 20 levels of queues below the root: evictions for gangs of nearer queues, at most three per level
after one for a farther queue, do not displace that one while it still counts."""
GROWTH_REST_S = 600.0
"""Seconds that an elastic gang keeps its size before it grows."""


GangKey: TypeAlias = str
"""A gang: the uid of its workload, and for all gangs of a workload but the first `UID/INDEX`."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts by resource name; sorted by name, without zeros, hence comparable and hashable."""

    items: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, amounts: Mapping[str, int] | Iterable[tuple[str, int]]) -> Resources:
        """Amounts from a mapping or from pairs; zeros are left out. Negative amounts are kept (they mean a deficit)."""
        return cls(tuple(sorted((name, amount) for name, amount in dict(amounts).items() if amount)))

    def get(self, name: str) -> int:
        """The amount of one resource; 0 if it is not named."""
        for key, amount in self.items:
            if key == name:
                return amount
        return 0

    def plus(self, other: Resources) -> Resources:
        total = dict(self.items)
        for name, amount in other.items:
            total[name] = total.get(name, 0) + amount
        return Resources.of(total)

    def times(self, factor: int) -> Resources:
        return Resources.of({name: amount * factor for name, amount in self.items})

    def capped(self, limit: int = MAX_AMOUNT) -> Resources:
        """No amount above `limit`; the same value when none is."""
        for _, amount in self.items:
            if amount > limit:
                return Resources.of({name: min(amount, limit) for name, amount in self.items})
        return self

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.items)

    def __bool__(self) -> bool:
        return bool(self.items)


@dataclass(frozen=True, slots=True)
class NodeTaint:
    """A taint: pods need a toleration for it."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


@dataclass(frozen=True, slots=True)
class NodeToleration:
    """A taint that a pod accepts; an empty key with `Exists` accepts all, an empty effect every effect."""

    key: str = ""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class MatchExpression:
    """One expression of a node selector term, with Kubernetes' operators."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node that pods can be placed on.

    `allocatable` includes `pods`, the number of pod slots. `unmanaged_usage` is what pods not managed by Muster use.
    `unhealthy_devices` are extended resources that the node has and that cannot be allocated for now.
    `flavor` is None when no flavor matches, or more than one. `domains` has one entry per level of the flavor's
    topology, widest first: a name unique in the flavor ("b1", "b1/r2", "b1/r2/n7"); empty if the node lacks the label
    of that level (and for every narrower one).
    """

    name: str
    allocatable: Resources
    unmanaged_usage: Resources = Resources()
    flavor: str | None = None
    domains: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[NodeTaint, ...] = ()
    schedulable: bool = True  # Ready, and not cordoned
    unhealthy_devices: Resources = Resources()


@dataclass(frozen=True, slots=True)
class FlavorInfo:
    """A kind of node; `levels` are the names of its topology levels, widest first."""

    name: str
    levels: tuple[str, ...] = ()
    tolerations: tuple[NodeToleration, ...] = ()  # added to every pod placed in the flavor


@dataclass(frozen=True, slots=True)
class Quota:
    """Quota of a queue for one resource of one flavor; None means absent (guaranteed 0, limit unlimited, lend all)."""

    flavor: str
    resource: str
    guaranteed: int | None = None
    limit: int | None = None
    lend: int | None = None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue of the tree. An inactive queue (cycle, missing parent, being deleted) admits nothing."""

    name: str
    parent: str | None = None
    weight: float = 1.0
    max_priority: int | None = None
    quotas: tuple[Quota, ...] = ()
    active: bool = True
    inactive_reason: str = ""
    min_runtime_s: float | None = None  # see `QueueTree.min_runtime_s`; None: that of the parent
    reservation_delay_s: float | None = None  # see `QueueTree.reservation_delay_s`; None: that of the parent


@dataclass(frozen=True, slots=True)
class Topology:
    """Level names of a flavor: all pods inside one domain of `required`; of `preferred` if possible."""

    required: str | None = None
    preferred: str | None = None


@dataclass(frozen=True, slots=True)
class Role:
    """Equal pods of a gang. Elastic if `min_replicas < replicas`.

    `request` is that of one pod, including its pod slot (`pods: 1`). `flavors` are tried in order; empty means the
    gang's, and if that is empty too, every flavor that the queue names, by name. `affinity` is an OR of ANDs. Roles
    without a `topology` of their own share one domain.
    """

    name: str
    replicas: int
    min_replicas: int
    request: Resources
    flavors: tuple[str, ...] = ()
    topology: Topology | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[MatchExpression, ...], ...] = ()
    tolerations: tuple[NodeToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class PastEviction:
    """An eviction for a gang of `queue`, while the evicted gang was in `gang_queue` ("": not recorded)."""

    at: float
    queue: str
    gang_queue: str = ""


@dataclass(frozen=True, slots=True)
class Gang:
    """All pods of one job: at least `min_replicas` of every role are placed, or no pod is.

    `submitted_at` is the first submission and is kept across evictions. `max_runtime_s` bounds the time from each
    admission; with None there is no start estimate and no backfill into reserved capacity. `borrowing_head_since`:
    since when it is, or was when it started, the first gang of its root and flavor that has to borrow and waits.
    """

    uid: GangKey
    name: str  # namespace/name
    queue: str
    priority: int
    submitted_at: float
    roles: tuple[Role, ...]
    flavors: tuple[str, ...] = ()
    topology: Topology | None = None
    max_runtime_s: float | None = None
    grace_s: float = 30.0
    start_timeout_s: float = 600.0
    excluded_nodes: frozenset[str] = frozenset()  # nodes excluded after failures of this job
    borrowing_head_since: float | None = None
    evictions: tuple[PastEviction, ...] = ()  # the last ones for other gangs


@dataclass(frozen=True, slots=True)
class RolePlacement:
    """Where the pods of one role are: indexes count up through `nodes`, (node, number of pods there) in order."""

    role: str
    flavor: str
    nodes: tuple[tuple[str, int], ...]

    @property
    def replicas(self) -> int:
        return sum(count for _, count in self.nodes)


Placement: TypeAlias = tuple[RolePlacement, ...]
"""One entry per role, in the gang's order."""


@dataclass(frozen=True, slots=True)
class RunningGang:
    """A gang that takes capacity and quota.

    state `admitted`: it runs or is about to. `evicting`: being evicted for `preemptor`, its capacity not yet free.
    `terminating`: finished, failed, suspended or requeued, with pods still terminating; `placement` then lists only
    those.

    `stopping_since`, of a gang that is not `admitted`: when its pods began to stop, as far as it is known. `waits_for`:
    what has to become true until its capacity is free, as in `pod a-0 on n1 has ended`.

    `checkpoint_at` is the time of its newest durable checkpoint; lost work counts from the later of that and
    `started_at`.

    `retained_placement`, of a gang that is not `admitted`, is where it continues once its old pods are deleted; empty
    if it releases its capacity. Either it is being resized, or that capacity will be nominated for it until
    `retained_until` at the latest (it lost a node, for example, and restarts with the other nodes).
    """

    gang: Gang
    placement: Placement
    admitted_at: float
    started_at: float | None = None
    checkpoint_at: float | None = None
    resized_at: float | None = None
    state: Literal["admitted", "evicting", "terminating"] = "admitted"
    preemptor: str | None = None
    retained_placement: Placement = ()
    retained_until: float | None = None
    stopping_since: float | None = None
    waits_for: str = ""

    @property
    def release_deadline(self) -> float | None:
        """Latest time at which its capacity is free: admitted + maxRuntime + grace + 30 s; None without a maximum run
        time."""
        if self.gang.max_runtime_s is None:
            return None
        return self.admitted_at + self.gang.max_runtime_s + self.gang.grace_s + 30.0


@dataclass(frozen=True, slots=True)
class Nomination:
    """Capacity that is freed or retained for one gang; it is charged to the gang's queue until the gang starts or the
    nomination expires.

    `placement` may cover only a part of the gang (nodes that survived a lost one). `victims` are the gangs that have to
    terminate first; empty for capacity retained across a restart. `nominated_gang` is the gang itself, needed only if
    it is neither in `pending` nor in `running` (it is in backoff): without it such a nomination cannot be charged and
    is ignored.
    """

    gang_uid: GangKey
    placement: Placement
    victims: tuple[GangKey, ...]
    expires_at: float
    nominated_gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Decayed resource-seconds that one leaf queue has used of one resource of one flavor."""

    queue: str
    flavor: str
    resource: str
    resource_seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan depends on. `usage` is decayed to the last share tick (every 60 s), not to `now`."""

    now: float
    nodes: tuple[NodeInfo, ...]
    flavors: tuple[FlavorInfo, ...]
    queues: tuple[QueueInfo, ...]
    pending: tuple[Gang, ...]
    running: tuple[RunningGang, ...]
    nominations: tuple[Nomination, ...] = ()
    usage: tuple[DecayedUsage, ...] = ()
    excluded_nodes: frozenset[str] = frozenset()  # nodes excluded for all gangs for now
    paused: frozenset[GangKey] = frozenset()  # gangs that are left as they are: not preempted, and not resized
    not_grown: frozenset[GangKey] = frozenset()  # gangs that may shrink but not grow


WaitReason = Literal[
    "QueueNotFound", "QueueInactive", "QueueNotAllowed", "PodRejected", "StatusWriteFailed", "PriorityClassNotFound",
    "PriorityTooHigh", "FlavorNotFound", "FlavorNotAllowed", "UnknownTopologyLevel", "ResourceProvidedByDRA",
    "DependencyNeverSatisfied", "DependencyNotFound", "WaitingForDependency", "WaitingForSingleton",
    "BeginTimeNotReached", "LargerThanQuota", "LargerThanCluster", "QuotaExceeded", "InsufficientResources",
    "TopologyUnsatisfiable", "BlockedByReservation", "WaitingForPreemption", "BlockedByQueueHead",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Admit:
    """Start the gang at this placement. `backfilled` if it starts before a waiting gang that is ahead of it."""

    gang_uid: GangKey
    placement: Placement
    backfilled: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The gang cannot start now: reason, message with numbers, and position in its queue (1 is next).
    `borrowing_head_since` is the gang's own, or now if it became the first just now: to be persisted. `ends_clock`: its
    own does not count any more."""

    gang_uid: GangKey
    reason: WaitReason
    message: str
    position: int | None = None
    estimated_start: float | None = None
    borrowing_head_since: float | None = None
    ends_clock: bool = False


@dataclass(frozen=True, slots=True)
class Nominate:
    """Persist that this capacity is for the gang, before any victim is evicted."""

    gang_uid: GangKey
    placement: Placement
    victims: tuple[GangKey, ...]
    expires_at: float


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict the gang for `preemptor`: checkpoint, stop, requeue. A gang that only has a nomination loses it."""

    gang_uid: GangKey
    preemptor: GangKey
    reason: Literal["Reclaimed", "Preempted"]


@dataclass(frozen=True, slots=True)
class Resize:
    """Restart the gang at another size on `placement` (its present nodes, and new ones when it grows)."""

    gang_uid: GangKey
    placement: Placement
    preemptor: GangKey | None  # the gang it shrinks for; None when it grows
    reason: Literal["Reclaimed", "Preempted", "Grown"]


Decision: TypeAlias = Nominate | Evict | Resize | Admit | Wait
