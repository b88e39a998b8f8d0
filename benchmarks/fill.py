"""What it costs to plan many small gangs: a cluster that fills with gangs of one pod and one GPU, then stays full.

`python benchmarks/planner.py --case fill` runs it. The Kubernetes operator lives on this: thousands of such jobs come
within seconds, every plan sees those that came since the last one, and thousands run already. Between two plans the
pods of the last plan's gangs get ready, so that their `Running` values are new ones, as they are on a real cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.model import Admit, FlavorInfo, Gang, NodeInfo, QueueInfo, Quota, Resources, Role, RunningGang, Snapshot
from muster.scheduling import PlannerCache, plan

GPU = "nvidia.com/gpu"
GPUS_A_NODE = 8
BATCHES = (50, 100, 200)
NODE = Resources.of({GPU: GPUS_A_NODE, "cpu": 96_000, "memory": 1 << 40, "pods": 110})
ROLE = Role("main", 1, 1, Resources.of({GPU: 1, "cpu": 1_000, "memory": 1 << 32, "pods": 1}))


@dataclass(frozen=True, slots=True)
class Plans:
    """One way to fill: how many plans it took, and the seconds of this process they took together."""

    case: str
    plans: int
    placed: int
    total_s: float
    mean_ms: float
    max_ms: float
    wall_s: float


def fill(nodes: int) -> Iterator[Plans]:
    """All gangs at once; in batches; and then, on the full cluster with more waiting, batches that end."""
    gangs = gangs_of(nodes * GPUS_A_NODE)
    yield _timed("all at once", empty(nodes), [gangs])[0]
    for size in BATCHES:
        batches = [gangs[i : i + size] for i in range(0, len(gangs), size)]
        yield _timed(f"batches of {size}", empty(nodes), batches)[0]
    yield _churn(nodes, gangs)


def empty(nodes: int) -> Snapshot:
    """Nodes of 8 GPUs in racks of 20, and a queue that may use all of them."""
    rows = tuple(NodeInfo(f"n{i}", NODE, flavor="gpu", domains=(f"r{i // 20}",)) for i in range(nodes))
    queues = (QueueInfo("default", quotas=(Quota("gpu", GPU, guaranteed=nodes * GPUS_A_NODE),)),)
    return Snapshot(0.0, rows, (FlavorInfo("gpu", ("rack",)),), queues, (), ())


def gangs_of(count: int, prefix: str = "g") -> tuple[Gang, ...]:
    """Gangs of one pod and one GPU."""
    return tuple(Gang(f"{prefix}{i}", f"ns/{prefix}{i}", "default", 0, float(i), (ROLE,)) for i in range(count))


def _timed(
    case: str, snapshot: Snapshot, batches: list[tuple[Gang, ...]]
) -> tuple[Plans, Snapshot, PlannerCache | None]:
    """Plan after plan, each with the next batch waiting beside those that wait still."""
    cache: PlannerCache | None = None
    times: list[float] = []
    placed, wall = 0, 0.0
    for number, batch in enumerate(batches, 1):
        snapshot = replace(snapshot, now=float(number), pending=(*snapshot.pending, *batch), running=_ready(snapshot))
        began, process = time.perf_counter(), time.process_time()
        made = plan(snapshot, cache)
        times.append(time.process_time() - process)
        wall += time.perf_counter() - began
        cache = made.cache
        snapshot = _started(snapshot, made.decisions)
        placed += sum(isinstance(decision, Admit) for decision in made.decisions)
    return _plans(case, placed, times, wall), snapshot, cache


def _churn(nodes: int, gangs: tuple[Gang, ...], plans: int = 20, size: int = 50) -> Plans:
    """The cluster is full and a quarter as many gangs wait; before every plan some end."""
    _, snapshot, cache = _timed("", empty(nodes), [gangs])
    snapshot = replace(snapshot, pending=gangs_of(len(gangs) // 4 + plans * size, "w"))
    cache = plan(snapshot, cache).cache
    times: list[float] = []
    placed, wall = 0, 0.0
    for number in range(plans):
        snapshot = replace(snapshot, now=snapshot.now + 1, running=_ready(snapshot)[size:])
        began, process = time.perf_counter(), time.process_time()
        made = plan(snapshot, cache)
        times.append(time.process_time() - process)
        wall += time.perf_counter() - began
        cache = made.cache
        snapshot = _started(snapshot, made.decisions)
        placed += sum(isinstance(decision, Admit) for decision in made.decisions)
        assert placed == (number + 1) * size, "what came free was not used"
    return _plans(f"full, {size} end a plan", placed, times, wall)


def _ready(snapshot: Snapshot) -> tuple[RunningGang, ...]:
    """Those who started in the last plan run now."""
    return tuple(r if r.started_at is not None else replace(r, started_at=snapshot.now) for r in snapshot.running)


def _started(snapshot: Snapshot, decisions: tuple[object, ...]) -> Snapshot:
    """The snapshot once the admitted have started."""
    placement = {decision.gang_uid: decision.placement for decision in decisions if isinstance(decision, Admit)}
    come = [RunningGang(g, placement[g.uid], admitted_at=snapshot.now) for g in snapshot.pending if g.uid in placement]
    waiting = tuple(g for g in snapshot.pending if g.uid not in placement)
    return replace(snapshot, pending=waiting, running=(*snapshot.running, *come))


def _plans(case: str, placed: int, times: list[float], wall_s: float) -> Plans:
    total = sum(times)
    return Plans(case, len(times), placed, total, total / len(times) * 1e3, max(times) * 1e3, wall_s)
