"""Small snapshots for tests of the planner: GPUs of 8-GPU nodes, in racks and blocks, in a tree of queues.

Amounts are GPUs wherever a test does not say otherwise; node names tell the rack: `r1-0` is the first node of rack r1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from muster.model import (
    Admit,
    Decision,
    Evict,
    FlavorInfo,
    Gang,
    NodeInfo,
    Nominate,
    Nomination,
    Placement,
    QueueInfo,
    Quota,
    Resize,
    Resources,
    Role,
    RolePlacement,
    RunningGang,
    Snapshot,
    Topology,
    Wait,
)
from muster.scheduling import PlanResult

GPU = "nvidia.com/gpu"
GIB = 1 << 30
H200 = FlavorInfo("h200", ("block", "rack"))
A100 = FlavorInfo("a100", ("block", "rack"))
HOUR = 3600.0


def gpus(count: int, *, cpu: int = 0, **more: int) -> Resources:
    """What one pod asks for: GPUs, its pod slot, and cores."""
    return Resources.of({GPU: count, "pods": 1, "cpu": cpu * 1000, **more})


def rack(
    name: str, count: int, *, size: int = 8, block: str = "b1", flavor: str = "h200", **more: Any
) -> list[NodeInfo]:
    """Nodes of one rack with `size` GPUs each."""
    amounts = Resources.of({GPU: size, "cpu": 96_000, "memory": 1024 * GIB, "pods": 110})
    return [
        NodeInfo(f"{name}-{i}", amounts, flavor=flavor, domains=(block, f"{block}/{name}"), **more)
        for i in range(count)
    ]


def queue(
    name: str,
    parent: str | None = None,
    guaranteed: int | None = None,
    limit: int | None = None,
    lend: int | None = None,
    *,
    flavor: str = "h200",
    **more: Any,
) -> QueueInfo:
    """A queue that names the GPUs of one flavor; without any amount it names nothing."""
    named = (guaranteed, limit, lend) != (None, None, None)
    quotas = (Quota(flavor, GPU, guaranteed, limit, lend),) if named else ()
    return QueueInfo(name, parent, quotas=quotas, **more)


def role(name: str, pods: int, least: int | None = None, size: int = 8, **more: Any) -> Role:
    """Pods of `size` GPUs each."""
    return Role(name, pods, pods if least is None else least, more.pop("request", gpus(size)), **more)


def gang(
    uid: str,
    queue: str = "q",
    pods: int = 1,
    least: int | None = None,
    *,
    size: int = 8,
    priority: int = 0,
    at: float = 0.0,
    runtime: float | None = None,
    required: str | None = None,
    preferred: str | None = None,
    roles: Sequence[Role] | None = None,
    **more: Any,
) -> Gang:
    """A gang of one role of `pods` pods with `size` GPUs each; `least` makes it elastic."""
    topology = Topology(required, preferred) if required or preferred else None
    return Gang(
        uid=uid,
        name=f"ns/{uid}",
        queue=queue,
        priority=priority,
        submitted_at=at,
        roles=tuple(roles) if roles is not None else (role("trainer", pods, least, size),),
        topology=topology,
        max_runtime_s=runtime,
        **more,
    )


def on(nodes: Mapping[str, int] | Iterable[str], *, role: str = "trainer", flavor: str = "h200") -> Placement:
    """A placement of one role: nodes with the pods on each, or one pod on each."""
    pods = nodes.items() if isinstance(nodes, Mapping) else ((name, 1) for name in nodes)
    return (RolePlacement(role, flavor, tuple(pods)),)


def run(gang: Gang, nodes: Mapping[str, int] | Iterable[str], *, since: float = 0.0, **more: Any) -> RunningGang:
    """A gang that runs there."""
    return RunningGang(gang, on(nodes), admitted_at=since, started_at=more.pop("started_at", since), **more)


def returning(running: RunningGang, nodes: Mapping[str, int] | Iterable[str], until: float = 2000.0) -> RunningGang:
    """A gang that stops, and comes back to these of its nodes, which are nominated for it until then."""
    return replace(running, retained_placement=on(nodes), retained_until=until, state="evicting")


def inputs(
    nodes: Iterable[NodeInfo],
    queues: Iterable[QueueInfo],
    waiting: Iterable[Gang] = (),
    running: Iterable[RunningGang] = (),
    *,
    now: float = 1000.0,
    flavors: Iterable[FlavorInfo] = (H200, A100),
    **more: Any,
) -> Snapshot:
    """A snapshot."""
    return Snapshot(now, tuple(nodes), tuple(flavors), tuple(queues), tuple(waiting), tuple(running), **more)


def started(plan: PlanResult) -> dict[str, Placement]:
    """Where gangs start, by uid, in the order they were admitted."""
    return {d.gang_uid: d.placement for d in plan.decisions if isinstance(d, Admit)}


def nodes_of(placement: Placement) -> dict[str, int]:
    """Pods by node."""
    total: dict[str, int] = {}
    for part in placement:
        for node, count in part.nodes:
            total[node] = total.get(node, 0) + count
    return total


def waits_by_uid(plan: PlanResult) -> dict[str, Wait]:
    """Waits by uid."""
    return {d.gang_uid: d for d in plan.decisions if isinstance(d, Wait)}


def evicted(plan: PlanResult) -> dict[str, str]:
    """Evicted gangs, with the preemptor of each."""
    return {d.gang_uid: d.preemptor for d in plan.decisions if isinstance(d, Evict)}


def resized(plan: PlanResult) -> dict[str, Resize]:
    """Resized gangs, by uid."""
    return {d.gang_uid: d for d in plan.decisions if isinstance(d, Resize)}


def nominated(plan: PlanResult) -> dict[str, Nominate]:
    """Nominations by uid."""
    return {d.gang_uid: d for d in plan.decisions if isinstance(d, Nominate)}


def carried_out(snapshot: Snapshot, decisions: Iterable[Decision]) -> Snapshot:
    """The snapshot right after the decisions were carried out: pods of those who leave are still there."""
    gangs = {gang.uid: gang for gang in snapshot.pending}
    running = {r.gang.uid: r for r in snapshot.running}
    nominations = {nomination.gang_uid: nomination for nomination in snapshot.nominations}
    for decision in decisions:
        match decision:
            case Nominate(uid, placement, victims, expires_at):
                nominations[uid] = Nomination(uid, placement, victims, expires_at)
            case Evict(uid, beneficiary) if uid in running:
                running[uid] = replace(
                    running[uid], state="evicting", preemptor=beneficiary, retained_placement=(), retained_until=None
                )
            case Evict(uid):
                nominations.pop(uid, None)
            case Resize(uid, placement, beneficiary):
                running[uid] = resizing(running[uid], placement, beneficiary, snapshot.now)
            case Admit(uid, placement):
                nominations.pop(uid, None)
                running[uid] = RunningGang(gangs.pop(uid), placement, admitted_at=snapshot.now, started_at=snapshot.now)
            case Wait(uid) if uid in gangs and decision.borrowing_head_since is not None:
                if gangs[uid].borrowing_head_since is None:
                    gangs[uid] = replace(gangs[uid], borrowing_head_since=decision.borrowing_head_since)
            case Wait(uid) if uid in gangs and decision.ends_clock:
                gangs[uid] = replace(gangs[uid], borrowing_head_since=None)
            case Wait():
                pass
    return replace(
        snapshot,
        pending=tuple(gangs.values()),
        running=tuple(running.values()),
        nominations=tuple(nominations.values()),
    )


def resizing(running: RunningGang, placement: Placement, beneficiary: str | None, now: float) -> RunningGang:
    """A gang that is resized to `placement`: until its old pods are gone it takes the capacity of both."""
    parts = []
    for old, new in zip(running.placement, placement, strict=True):
        pods = dict(old.nodes)
        for node, count in new.nodes:
            pods[node] = max(pods.get(node, 0), count)
        parts.append(RolePlacement(old.role, old.flavor, tuple(pods.items())))
    return replace(
        running,
        placement=tuple(parts),
        retained_placement=placement,
        state="evicting",
        preemptor=beneficiary,
        resized_at=now,
    )


def left(snapshot: Snapshot, after_s: float = 60.0) -> Snapshot:
    """The snapshot some time later: evicted gangs have ended and wait again, nominated if they return to their nodes,
    and resized ones go on."""
    running, waiting, nominations = [], list(snapshot.pending), list(snapshot.nominations)
    for r in snapshot.running:
        if r.state == "admitted":
            running.append(r)
        elif r.retained_until is not None:
            waiting.append(r.gang)
            nominations.append(Nomination(r.gang.uid, r.retained_placement, (), r.retained_until))
        elif r.retained_placement:
            running.append(
                replace(r, placement=r.retained_placement, retained_placement=(), state="admitted", preemptor=None)
            )
        elif r.state == "evicting":
            waiting.append(r.gang)
    now = snapshot.now + after_s
    return replace(snapshot, now=now, pending=tuple(waiting), running=tuple(running), nominations=tuple(nominations))
