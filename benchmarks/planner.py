"""How long a plan takes: from scratch, after one gang arrived that cannot start, after an 8-GPU gang ended.

    python benchmarks/planner.py --nodes 10000 --gangs 2000 --queues 200 --json
    python benchmarks/planner.py --sweep
    python benchmarks/planner.py --case crowd     # nine of ten nodes taken by gangs of one pod
    python benchmarks/planner.py --case fill      # thousands of gangs of one GPU fill a cluster: see fill.py
    python benchmarks/planner.py --case reclaim   # a guarantee is reclaimed, node by node: see reclaim.py

A busy cluster: nodes of 8 GPUs in blocks of 25 racks of 20; a tree of queues three levels deep; gangs of
8 to 1,024 GPUs in it that were placed by the planner itself and a part of which has ended since; and the same mix
waiting, several times more than fits, so that a plan admits some, preempts for some, reserves for some, and the others
wait. `process_*` figures count the time of this process only, for busy machines.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from fill import fill
from reclaim import reclaim

from muster.model import (
    Admit,
    Evict,
    FlavorInfo,
    Gang,
    NodeInfo,
    Nominate,
    Nomination,
    QueueInfo,
    Quota,
    Resize,
    Resources,
    Role,
    RunningGang,
    Snapshot,
    Topology,
    Wait,
)
from muster.scheduling import PlannerCache, PlanResult, plan

GPU = "nvidia.com/gpu"
GPUS_A_NODE = 8
NODES_A_RACK = 20
RACKS_A_BLOCK = 25
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
POD = Resources.of({GPU: 8, "cpu": 64_000, "memory": 1 << 40, "pods": 1})
NODE = Resources.of({GPU: 8, "cpu": 192_000, "memory": 2 << 40, "pods": 110})


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int
    gangs: int
    queues: int


def nodes_of(count: int) -> tuple[NodeInfo, ...]:
    """Nodes in racks of 20, racks in blocks of 25."""
    nodes = []
    for i in range(count):
        rack = i // NODES_A_RACK
        block = f"b{rack // RACKS_A_BLOCK}"
        nodes.append(NodeInfo(f"n{i}", NODE, flavor="h200", domains=(block, f"{block}/r{rack}")))
    return tuple(nodes)


def queues_of(count: int, gpus: int) -> tuple[QueueInfo, ...]:
    """A company, its departments of 20 teams, and teams with equal guarantees, a quarter more than the cluster has,
    as is usual where not all teams work at once; two of three may borrow as much again. So gangs wait for quota or for
    capacity."""
    departments = max(1, count // 20)
    share = max(8, gpus * 5 // 4 // count)
    company = QueueInfo("company", quotas=(Quota("h200", GPU),))
    middle = [QueueInfo(f"d{d}", "company") for d in range(departments)]
    teams = [
        QueueInfo(
            f"d{i % departments}/t{i}",
            f"d{i % departments}",
            quotas=(Quota("h200", GPU, share, share * (2 if i % 3 else 1)),),
        )
        for i in range(count)
    ]
    return (company, *middle, *teams)


def gangs_of(
    prefix: str, count: int, queues: Sequence[QueueInfo], largest: int, draw: random.Random
) -> tuple[Gang, ...]:
    """Gangs of 8 to 1,024 GPUs: half want one rack or block, a third declare their runtime, some are elastic."""
    teams = [queue.name for queue in queues if "/" in queue.name]
    gangs = []
    for i in range(count):
        pods = min(draw.choice(SIZES), largest) // GPUS_A_NODE
        kind = draw.random()
        topology = None
        if kind < 0.5:
            topology = Topology("rack") if pods <= NODES_A_RACK else Topology("block", "rack")
        elif kind < 0.7:
            topology = Topology(preferred="rack")
        least = max(1, pods // 2) if draw.random() < 0.15 else pods
        gangs.append(
            Gang(
                uid=f"{prefix}{i}",
                name=f"team/{prefix}{i}",
                queue=draw.choice(teams),
                priority=draw.choice((0, 0, 0, 10)),
                submitted_at=float(i),
                roles=(Role("trainer", pods, least, POD),),
                topology=topology,
                max_runtime_s=draw.choice((None, 3600.0 * draw.randint(1, 48), 3600.0 * draw.randint(1, 48))),
            )
        )
    return tuple(gangs)


def busy_cluster(size: Size, seed: int) -> Snapshot:
    """A cluster that has been in use for a while: about a third of it by the same mix as waits, the rest by gangs of
    8 to 64 GPUs; then one gang in eight ended."""
    draw = random.Random(seed)
    gpus = size.nodes * GPUS_A_NODE
    queues = queues_of(size.queues, gpus)
    largest = max(8, min(1024, gpus // 4))
    snapshot = Snapshot(10_000.0, nodes_of(size.nodes), (FlavorInfo("h200", ("block", "rack")),), queues, (), ())
    mix = gangs_of("m", max(4, gpus // 3 // 255), queues, largest, draw)
    small = gangs_of("s", max(8, gpus // 20), queues, min(64, largest), draw)
    for gangs in (mix, small):
        snapshot = replace(snapshot, pending=gangs)
        snapshot = applied(snapshot, plan(snapshot))
    running = tuple(
        replace(r, checkpoint_at=10_000.0 + draw.random() * 1000)
        for r in snapshot.running
        if r.state == "admitted" and draw.random() < 7 / 8
    )
    waiting = gangs_of("w", size.gangs, queues, largest, draw)
    return replace(snapshot, now=12_000.0, pending=waiting, running=running, nominations=())


def crowded_cluster(size: Size, seed: int) -> Snapshot:
    """Nine of ten nodes taken by one gang of 8 GPUs each; the usual mix waits."""
    draw = random.Random(seed)
    gpus = size.nodes * GPUS_A_NODE
    queues = queues_of(size.queues, gpus)
    small = gangs_of("s", size.nodes * 9 // 10, queues, GPUS_A_NODE, draw)
    flavors = (FlavorInfo("h200", ("block", "rack")),)
    snapshot = Snapshot(10_000.0, nodes_of(size.nodes), flavors, queues, small, ())
    snapshot = applied(snapshot, plan(snapshot))
    running = tuple(replace(r, checkpoint_at=10_000.0 + draw.random() * 1000) for r in snapshot.running)
    waiting = gangs_of("w", size.gangs, queues, max(8, min(1024, gpus // 4)), draw)
    return replace(snapshot, now=12_000.0, pending=waiting, running=running, nominations=())


def applied(snapshot: Snapshot, made: PlanResult) -> Snapshot:
    """The snapshot right after the decisions were carried out; victims are still terminating."""
    gang_of = {gang.uid: gang for gang in snapshot.pending}
    running = {r.gang.uid: r for r in snapshot.running}
    nominations = {nomination.gang_uid: nomination for nomination in snapshot.nominations}
    for decision in made.decisions:
        match decision:
            case Admit(uid, placement):
                nominations.pop(uid, None)
                running[uid] = RunningGang(
                    gang_of.pop(uid), placement, admitted_at=snapshot.now, started_at=snapshot.now
                )
            case Nominate(uid, placement, victims, expires_at):
                nominations[uid] = Nomination(uid, placement, victims, expires_at)
            case Evict(uid, preemptor) if uid in running:
                running[uid] = replace(running[uid], state="evicting", preemptor=preemptor)
            case Evict(uid):
                nominations.pop(uid, None)
            case Resize(uid, placement, preemptor):
                running[uid] = replace(
                    running[uid], retained_placement=placement, state="evicting", preemptor=preemptor
                )
            case Wait():
                pass
    return replace(
        snapshot,
        pending=tuple(gang_of.values()),
        running=tuple(running.values()),
        nominations=tuple(nominations.values()),
    )


def timed(snapshot: Snapshot, cache: PlannerCache | None = None) -> tuple[float, float, PlanResult]:
    """Seconds on the clock, seconds of this process, and the result."""
    wall, process = time.perf_counter(), time.process_time()
    result = plan(snapshot, cache)
    return time.perf_counter() - wall, time.process_time() - process, result


def measure(make: Callable[[Size, int], Snapshot], size: Size, rounds: int, seed: int) -> dict[str, float | int]:
    """The three figures, as medians, and the smallest of each (what a quiet machine would show)."""
    snapshot = make(size, seed)
    full = [timed(snapshot) for _ in range(rounds)]
    first = full[-1][2]
    settled, before = until_quiet(snapshot, first)
    draw = random.Random(seed + 1)
    arrivals = [timed(s, before.cache) for s in arrivals_of(settled, size, rounds, draw)]
    releases = [timed(s, before.cache) for s in releases_of(settled, rounds, draw)]
    figures: dict[str, float | int] = {}
    for name, runs in (("full_plan", full), ("replan_arrival", arrivals), ("replan_release", releases)):
        figures[f"{name}_s"] = statistics.median(run[0] for run in runs)
        figures[f"process_{name}_s"] = statistics.median(run[1] for run in runs)
        figures[f"min_{name}_s"] = min(run[0] for run in runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures["peak_rss_mib"] = peak / (1 << 20) if sys.platform == "darwin" else peak / 1024
    figures["running"] = len(snapshot.running)
    figures["placed"] = sum(isinstance(d, Admit) for d in first.decisions)
    figures["nominated"] = sum(isinstance(d, Nominate) for d in first.decisions)
    figures["waiting"] = sum(isinstance(d, Wait) for d in first.decisions)
    return figures


def until_quiet(snapshot: Snapshot, made: PlanResult) -> tuple[Snapshot, PlanResult]:
    """The snapshot once plans have nothing more to do for now (victims are still terminating), and its plan."""
    while not all(isinstance(decision, Wait) for decision in made.decisions):
        snapshot = replace(applied(snapshot, made), now=snapshot.now + 1)
        made = plan(snapshot, made.cache)
    return snapshot, made


def arrivals_of(settled: Snapshot, size: Size, rounds: int, draw: random.Random) -> list[Snapshot]:
    """Snapshots with one more gang that cannot start: it requires a whole block, and none is free."""
    teams = [queue.name for queue in settled.queues if "/" in queue.name]
    pods = min(128, max(1, size.nodes // 4))
    snapshots = []
    for i in range(rounds):
        role = Role("trainer", pods, pods, POD)
        topology = Topology("block")
        gang = Gang(f"new{i}", f"team/new{i}", draw.choice(teams), 0, settled.now, (role,), topology=topology)
        snapshots.append(replace(settled, now=settled.now + 1 + i, pending=(*settled.pending, gang)))
    return snapshots


def releases_of(settled: Snapshot, rounds: int, draw: random.Random) -> list[Snapshot]:
    """Snapshots with one running gang of 8 GPUs less."""
    small = [r for r in settled.running if sum(part.replicas for part in r.placement) == 1 and r.state == "admitted"]
    snapshots = []
    for i, ended in enumerate(draw.sample(small, min(rounds, len(small)))):
        running = tuple(r for r in settled.running if r is not ended)
        snapshots.append(replace(settled, now=settled.now + 1 + i, running=running))
    return snapshots


def check_cache(size: Size, seed: int) -> None:
    """What is timed is right: a plan with a cache equals the plan without."""
    snapshot = busy_cluster(size, seed)
    settled, before = until_quiet(snapshot, plan(snapshot))
    cache: PlannerCache = before.cache
    for snapshot in (*arrivals_of(settled, size, 2, random.Random(0)), *releases_of(settled, 2, random.Random(0))):
        quick = plan(snapshot, cache)
        if quick.decisions != plan(snapshot).decisions:
            raise SystemExit("a plan with a cache differs from the plan without")
        cache = quick.cache


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, help="default: 10,000; for `fill` 500, for `reclaim` both")
    parser.add_argument("--gangs", type=int, default=2_000)
    parser.add_argument("--queues", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7, help="plans of each kind; the median counts (at least 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="from 100 to 10,000 nodes, gangs and queues in proportion")
    parser.add_argument("--case", choices=("mix", "crowd", "fill", "reclaim"), default="mix")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.case == "fill":
        cases = [asdict(case) for case in fill(args.nodes or 500)]
        print(json.dumps(cases, indent=2) if args.json else "\n".join(map(_fill_line, cases)))
        return
    if args.case == "reclaim":
        counts = (args.nodes,) if args.nodes else (500, 10_000)
        results = [result for count in counts for result in reclaim(count)]
        lines = [f"{result.case:<30} {result.victims:>6} victims: {result.plan_s:.2f} s" for result in results]
        print(json.dumps([asdict(result) for result in results], indent=2) if args.json else "\n".join(lines))
        return
    make = crowded_cluster if args.case == "crowd" else busy_cluster
    sizes = [Size(args.nodes or 10_000, args.gangs, args.queues)]
    if args.sweep:
        sizes = [Size(n, max(20, n // 5), max(4, n // 50)) for n in (100, 300, 1_000, 3_000, 10_000)]
    check_cache(Size(200, 100, 20), args.seed)
    rows = []
    for size in sizes:
        figures = measure(make, size, max(5, args.rounds), args.seed)
        row = {"nodes": size.nodes, "gangs": size.gangs, "queues": size.queues, **figures}
        rows.append(row)
        if not args.json:
            print(
                f"{size.nodes:>6} nodes {size.gangs:>5} gangs {size.queues:>4} queues: "
                f"full {row['full_plan_s']:.3f} s, after an arrival {row['replan_arrival_s'] * 1000:.1f} ms, "
                f"after a release {row['replan_release_s'] * 1000:.1f} ms (of this process "
                f"{row['process_full_plan_s']:.3f} s, {row['process_replan_arrival_s'] * 1000:.1f} ms, "
                f"{row['process_replan_release_s'] * 1000:.1f} ms), {row['running']} running, "
                f"{row['placed']} placed, {row['waiting']} waiting, peak {row['peak_rss_mib']:.0f} MiB"
            )
    if args.json:
        print(json.dumps(rows if args.sweep else rows[0], indent=2))


def _fill_line(row: dict[str, str | int | float]) -> str:
    return (
        f"{row['case']:<22} {row['plans']:>3} plans admit {row['placed']:>5}: {row['total_s']:.2f} s of CPU time, "
        f"{row['mean_ms']:.1f} ms a plan, at most {row['max_ms']:.1f} ms ({row['wall_s']:.2f} s on the clock)"
    )


if __name__ == "__main__":
    main()
