"""The fields of objects that the checker reads, as stored in etcd. Amounts are whole numbers: thousandths of a unit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

Json = Mapping[str, Any]
Slot = tuple[str, int]  # role, index

GROUP = "muster.dev"
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


@lru_cache(4096)
def quantity(text: str) -> int:
    """Thousandths, rounded up: "2" is 2000, "500m" is 500, "1Ki" is 1024000."""
    digits = text.rstrip("numkKMGTPEi")
    scaled = Decimal(digits) * _SUFFIXES.get(text[len(digits) :], Decimal(1)) * 1000
    return int(scaled.to_integral_value(rounding="ROUND_CEILING"))


def seconds(text: str | None) -> float | None:
    """Unix seconds of a time as the API server writes it."""
    return None if not text else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def pod_request(spec: Json) -> dict[str, int]:
    """What a pod uses of its node: containers and native sidecars side by side, or its largest init container."""
    side_by_side: Counter[str] = Counter()
    largest: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        one = _container(container)
        if container.get("restartPolicy") == "Always":
            side_by_side.update(one)
        for name, amount in one.items():
            largest[name] = max(largest.get(name, 0), amount + side_by_side[name])
    for container in spec.get("containers") or ():
        side_by_side.update(_container(container))
    side_by_side.update({name: quantity(str(value)) for name, value in (spec.get("overhead") or {}).items()})
    names = side_by_side.keys() | largest.keys()
    return {"pods": 1000} | {name: max(side_by_side[name], largest.get(name, 0)) for name in names}


def _container(container: Json) -> dict[str, int]:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(str(value)) for name, value in requests.items()}


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `job`: uid of the TrainingJob that owns or owned it, "" for others; `pin`: the node it is pinned to."""

    key: str  # namespace/name
    uid: str
    job: str
    slot: Slot
    attempt: int
    pin: str
    node: str
    phase: str
    ready: bool
    stopping: bool
    forced: bool  # deleted without a grace period
    disrupted: bool  # marked as stopped by another client than the operator
    hostile: bool  # marked as one whose message is hostile, while there is no other fault
    rejected: bool  # failed by its kubelet before a container started
    requests: Mapping[str, int]
    object: str = ""  # uid of the object of another kind that it belongs to, in an admission
    gated: bool = False  # by Muster
    had_ended: bool = False  # though its phase may say otherwise: KWOK writes late that a rejected pod runs

    @property
    def ended(self) -> bool:
        """Whether it has ended, which is for ever."""
        return self.had_ended or self.phase in ("Succeeded", "Failed")

    @property
    def live(self) -> bool:
        """Whether it uses capacity, or will."""
        never_bound = self.stopping and not self.node  # only a finalizer keeps it
        return not self.ended and not never_bound

    @property
    def started(self) -> bool:
        """Whether it has started."""
        return self.phase == "Succeeded" or (self.phase == "Running" and self.ready)


DISRUPTED = "chaos.muster.dev/disrupted"  # annotation on pods that the driver stops
STARTS_WITHIN = "chaos.muster.dev/starts-within-seconds"  # annotation on a job larger than its queue's guarantee
HOSTILE = "chaos.muster.dev/hostile"  # annotation on pods to which the driver writes an expensive termination message


def pod(document: Json) -> Pod:
    """Read one."""
    meta, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    owners = meta.get("ownerReferences") or ()
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    owner = next((o["uid"] for o in owners if o["kind"] == "TrainingJob" and o["apiVersion"].startswith(GROUP)), "")
    job = owner or labels.get("muster.dev/job-uid", "")  # orphaned: its owner was removed
    of_object, role = ("", "") if job else _object_of(meta)
    return Pod(
        key=f"{meta['namespace']}/{meta['name']}",
        uid=meta["uid"],
        job=job,
        object=of_object,
        gated=any(one["name"] == "muster.dev/admission" for one in spec.get("schedulingGates") or ()),
        slot=(role or labels.get("muster.dev/role", ""), int(labels.get("muster.dev/index", -1))),
        attempt=int(labels.get("muster.dev/attempt", -1)),
        pin=_pin(spec),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        ready=conditions.get("Ready") == "True",
        stopping=meta.get("deletionTimestamp") is not None,
        forced=meta.get("deletionGracePeriodSeconds") == 0,
        disrupted=conditions.get("DisruptionTarget") == "True" or DISRUPTED in annotations,
        hostile=HOSTILE in annotations,
        rejected=status.get("phase") == "Failed" and bool(status.get("reason")) and not status.get("containerStatuses"),
        requests=pod_request(spec),
    )


def _pin(spec: Json) -> str:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    named: set[str] = set()
    for term in required.get("nodeSelectorTerms") or ():
        pins = [field["values"] for field in term.get("matchFields") or () if field["key"] == "metadata.name"]
        named.update(pins[0] if pins else ("",))
    return named.pop() if len(named) == 1 else ""


def _object_of(meta: Json) -> tuple[str, str]:
    """The uid of the object of another kind that a pod of an admission belongs to, and the pod set; "" for others."""
    if "muster.dev/attempt" not in (meta.get("labels") or {}):
        return "", ""
    uid, _, rest = (meta.get("annotations") or {}).get("muster.dev/object", "").partition("/")
    if rest:
        return uid, rest.partition("/")[0]
    owner = next(
        (o["uid"] for o in meta.get("ownerReferences") or () if o["kind"] == "Job" and o.get("controller")), ""
    )
    return owner, "pods"


RETAINING = ("NodeLost", "PodLost", "PodRejected", "RestartElsewhere", "Drained")
"""Evictions after which a job restarts on the nodes that are left, without those that it blames."""


@dataclass(frozen=True, slots=True)
class Nomination:
    """Capacity nominated for a job: pods by (role, flavor, node)."""

    placement: Mapping[tuple[str, str, str], int]
    victims: frozenset[str]
    expires_at: float


@dataclass(frozen=True, slots=True)
class Job:
    """A TrainingJob. `placement` is the node of each slot, `flavors` the flavor of each role."""

    key: str
    uid: str
    deleted: bool  # it is being deleted
    queue: str
    stopped_by_user: bool  # suspended or cancelled
    start_timeout_s: float
    starts_within_s: float | None  # how long it may wait; only of marked jobs, which have to borrow
    requests: Mapping[str, Mapping[str, int]]  # by role, of one pod
    tolerations: Mapping[str, tuple[Json, ...]]  # by role
    essential: frozenset[str]
    admitted: bool
    evicted: bool
    retains: bool  # evicted, and it restarts on the nodes that are left
    blamed: frozenset[str]  # nodes on which it does not restart
    completed: frozenset[Slot]  # pods that completed while others run
    waits_for_preemption: bool  # its nominated capacity was still in use, as far as the operator knew
    finished: bool
    ready: bool
    phase: str
    attempt: int
    pods_wanted: int
    pods_ready: int
    placement: Mapping[Slot, str]
    flavors: Mapping[str, str]
    not_before: float  # backoff; 0 without
    nomination: Nomination | None
    eviction_for: str
    status: Json = field(repr=False)

    @property
    def runs(self) -> bool:
        """Admitted, and neither evicted nor finished."""
        return self.admitted and not (self.evicted or self.finished)


def job(document: Json) -> Job:
    """Read one."""
    meta, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    true = {name for name, one in conditions.items() if one["status"] == "True"}
    placement = status.get("placement") or ()
    nomination, within = status.get("nomination"), (meta.get("annotations") or {}).get(STARTS_WITHIN)
    return Job(
        key=f"{meta['namespace']}/{meta['name']}",
        uid=meta["uid"],
        deleted=meta.get("deletionTimestamp") is not None,
        queue=spec.get("queue") or "default",
        stopped_by_user=bool(spec.get("suspend") or spec.get("cancel")),
        start_timeout_s=float(spec.get("startTimeoutSeconds") or 600),
        starts_within_s=None if within is None else float(within),
        requests={role["name"]: pod_request(role["template"]["spec"]) for role in spec["roles"]},
        tolerations={role["name"]: tuple(role["template"]["spec"].get("tolerations") or ()) for role in spec["roles"]},
        essential=frozenset(role["name"] for role in spec["roles"] if role.get("essential", True)),
        admitted="Admitted" in true,
        evicted="Admitted" in true and "Evicted" in true,
        retains=(conditions.get("Evicted") or {}).get("reason") in RETAINING,
        blamed=frozenset(entry["node"] for entry in status.get("blamedNodes") or ()),
        completed=frozenset(_completed(status.get("finishedPods") or ())),
        waits_for_preemption=(conditions.get("Admitted") or {}).get("reason") == "WaitingForPreemption",
        finished=bool(true & {"Complete", "Failed", "Cancelled"}),
        ready="PodsReady" in true,
        phase=status.get("phase") or "Pending",
        attempt=int(status.get("attempt") or 0),
        pods_wanted=int(status.get("podsWanted") or 0),
        pods_ready=int(status.get("podsReady") or 0),
        placement={slot: node for slot, _, node in _slots(placement)},
        flavors={part["role"]: part.get("flavor") or "" for part in placement},
        not_before=seconds(status.get("requeueAfter")) or 0.0,
        nomination=None if nomination is None else _nomination(nomination),
        eviction_for=(status.get("eviction") or {}).get("for") or "",
        status=status,
    )


def workload(document: Json, of: Json | None) -> Job | None:
    """The object of another kind `of` that a Workload is of, as if it were a TrainingJob; None without it."""
    reference, meta = document["spec"]["objectRef"], document["metadata"]
    if of is None or of["metadata"]["uid"] != reference["uid"]:
        return None
    spec, annotations = of["spec"], of["metadata"].get("annotations") or {}
    roles = (
        [{"name": "pods", "template": spec["template"]}]
        if "template" in spec
        else [{"name": one["name"], "template": one["template"]["spec"]["template"]} for one in spec["replicatedJobs"]]
    )
    stopped = annotations.get("muster.dev/suspend") == "true"
    found = job({
        "metadata": {**of["metadata"], "name": meta["name"], "annotations": {}},
        "spec": {"queue": document["spec"]["queue"], "roles": roles, "suspend": stopped},
        "status": document.get("status"),
    })  # fmt: skip
    return found


def _completed(parts: Iterable[Json]) -> Iterable[Slot]:
    """The slots of `status.finishedPods`: by role, "0-3,5"."""
    for part in parts:
        for run in part["indexes"].split(","):
            first, _, last = run.partition("-")
            yield from ((part["role"], index) for index in range(int(first), int(last or first) + 1))


def _slots(placement: Iterable[Json]) -> Iterable[tuple[Slot, str, str]]:
    """(slot, flavor, node) of every pod of a placement."""
    for part in placement:
        for share in part.get("nodes") or ():
            first, _, last = share["indexes"].partition("-")
            for index in range(int(first), int(last or first) + 1):
                yield (part["role"], index), part.get("flavor") or "", share["node"]


def _nomination(nomination: Json) -> Nomination:
    slots = _slots(nomination.get("placement") or ())
    pods = Counter((role, flavor, node) for (role, _), flavor, node in slots)
    return Nomination(pods, frozenset(nomination.get("victims") or ()), seconds(nomination["expiresAt"]) or 0.0)


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its allocatable amounts. `taints` have a key and an effect, those that only prefer are left out."""

    key: str
    allocatable: Mapping[str, int]
    labels: Mapping[str, str]
    taints: tuple[tuple[str, str], ...] = ()


def node(document: Json) -> Node:
    """Read one."""
    allocatable = (document.get("status") or {}).get("allocatable") or {}
    amounts = {name: quantity(str(value)) for name, value in allocatable.items()}
    taints = (document.get("spec") or {}).get("taints") or ()
    hard = tuple((one["key"], one["effect"]) for one in taints if one["effect"] != "PreferNoSchedule")
    return Node(document["metadata"]["name"], amounts, document["metadata"].get("labels") or {}, hard)


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue: (guaranteed, limit, lend) by (flavor, resource), None where nothing is written."""

    key: str
    parent: str | None
    cells: Mapping[tuple[str, str], tuple[int | None, int | None, int | None]]


def queue(document: Json) -> Queue:
    """Read one."""
    spec = document.get("spec") or {}
    cells = {}
    for part in spec.get("resources") or ():
        kinds = [part.get(kind) or {} for kind in ("guaranteed", "limit", "lend")]
        for resource in {name for kind in kinds for name in kind}:
            amounts = (quantity(str(kind[resource])) if resource in kind else None for kind in kinds)
            cells[part["flavor"], resource] = tuple(amounts)
    return Queue(document["metadata"]["name"], spec.get("parent"), cells)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Lease:
    """The holder of a Lease, and its last renewal."""

    key: str
    holder: str
    renewed: str


def lease(document: Json) -> Lease:
    """Read one."""
    meta, spec = document["metadata"], document.get("spec") or {}
    return Lease(f"{meta['namespace']}/{meta['name']}", spec.get("holderIdentity") or "", spec.get("renewTime") or "")


def compact(document: Json) -> str:
    """An object for a report, without managedFields."""
    meta = {name: value for name, value in document.get("metadata", {}).items() if name != "managedFields"}
    return json.dumps({**document, "metadata": meta}, separators=(",", ":"))
