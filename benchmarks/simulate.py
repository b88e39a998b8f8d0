"""How policies compare on a recorded workload, how fast the simulation is, and what one step of the engine costs.

    python benchmarks/simulate.py replay NODES.csv JOBS.csv
    python benchmarks/simulate.py replay NODES.csv JOBS.csv --nodes 16 --bound 2 --qos
    python benchmarks/simulate.py two-queues --seed 1
    python benchmarks/simulate.py step --nodes 1000 --running 1000

`--nodes N` keeps N nodes, evenly spread over the list, so that there is something to queue for. `--bound F` lets every
job declare F times its recorded runtime as its maxRuntimeSeconds. `--qos` gives jobs of OpenB's class LS priority 10.
Wall time depends on who else uses the machine; `process_s` counts the time of this process only.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from muster.api import spec
from muster.cluster import NodeView
from muster.engine import Engine, run_cycle
from muster.model import Resources
from muster.simulate import (
    POLICIES,
    JobBehavior,
    RecordedWorkload,
    SimCluster,
    SimulationConfig,
    SimulationProgress,
    TraceJob,
    TraceNode,
    WorkloadAssumptions,
    read_workload,
    run,
)

GPU = "nvidia.com/gpu"


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    replay = ways.add_parser("replay", help="the same workload under each policy")
    replay.add_argument("nodes_csv", type=Path)
    replay.add_argument("jobs_csv", type=Path)
    replay.add_argument("--nodes", type=int, help="keep so many nodes")
    replay.add_argument("--policy", action="append", choices=list(POLICIES), help="repeat for several; default: all")
    replay.add_argument("--bound", type=float, help="every job declares this times its runtime")
    replay.add_argument("--qos", action="store_true", help="jobs of QoS LS get priority 10")
    two = ways.add_parser("two-queues", help="two queues that lend to and take back from each other, on 16 GPUs")
    two.add_argument("--seed", type=int, default=1)
    two.add_argument("--policy", action="append", choices=list(POLICIES), help="repeat for several; default: all")
    step = ways.add_parser("step", help="one round of the engine in which one job changed")
    step.add_argument("--nodes", type=int, default=1000)
    step.add_argument("--running", type=int, default=1000)
    step.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    for line in {"replay": _replays, "two-queues": _two_queues, "step": _steps}[args.way](args):
        print(json.dumps(line), flush=True)


def _replays(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    workload = _cut(read_workload(args.nodes_csv, args.jobs_csv), args.nodes)
    habits = WorkloadAssumptions(bound_factor=args.bound, qos_priorities={"LS": 10} if args.qos else {})
    for name in args.policy or POLICIES:
        started = time.process_time()
        result = run(workload, POLICIES[name], SimulationConfig(habits, progress=_show))
        print("\r\033[K" + "\n".join(result.notes), file=sys.stderr)
        nodes = {"nodes": len(workload.nodes), "gpus": workload.gpus}
        yield {**nodes, **result.to_json(), "process_s": round(time.process_time() - started, 1)}


def _two_queues(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """200 jobs of 1 to 4 pods with 1, 2 or 4 GPUs each, of two queues and two priorities, none with a declared bound.

    One comes every 150 s on average and runs for half an hour on average: more than 16 GPUs can serve, so that they
    are never idle for want of work until the last job has come.
    """
    draw = random.Random(args.seed)
    nodes = tuple(TraceNode(f"n{i}", 8, 96_000, 1 << 20, "h200") for i in range(2))
    jobs, at = [], 0.0
    for i in range(200):
        at += draw.expovariate(1 / 150)
        pods, gpus = draw.randint(1, 4), draw.choice((1, 2, 4))
        row = TraceJob(f"job{i}", round(at), round(60 + draw.expovariate(1 / 1740)), pods, gpus, pods)
        jobs.append(replace(row, queue=draw.choice("ab"), priority=draw.choice((0, 5))))
    for name in args.policy or POLICIES:
        result = run(RecordedWorkload(nodes, tuple(jobs)), POLICIES[name])
        yield {"seed": args.seed, **result.to_json()}


def _cut(workload: RecordedWorkload, nodes: int | None) -> RecordedWorkload:
    every = len(workload.nodes) / nodes if nodes else 1.0
    count = nodes or len(workload.nodes)
    return replace(workload, nodes=tuple(workload.nodes[int(i * every)] for i in range(count)))


def _show(progress: SimulationProgress) -> None:
    text = f"{progress.finished} of {progress.jobs} jobs, {progress.waiting} waiting, {progress.now_s:,.0f} s"
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _steps(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A full cluster, but for a few nodes: a job arrives there, is admitted, gets ready, ends: three steps.

    Times are of the process, the simulated cluster's own work included.
    """
    amounts = Resources.of({GPU: 8, "cpu": 64_000, "memory": 1 << 38, "pods": 110})
    nodes = [NodeView(f"n{i}", amounts) for i in range(args.nodes)]
    flavor = spec.Flavor.model_validate({"metadata": {"name": "any"}})
    cluster = SimCluster(nodes, [flavor], [_queue(8 * args.nodes)])
    for number in range(args.running):
        cluster.submit(_job(f"running-{number}"), JobBehavior(1e9))
    engine = Engine()
    started = time.process_time()
    run_cycle(cluster, engine)
    first_s = time.process_time() - started
    _settle(cluster, engine)
    steps, started = 0, time.process_time()
    for number in range(args.rounds):
        cluster.submit(_job(f"short-{number}"), JobBehavior(0.5))
        steps += _settle(cluster, engine)
    step_s = (time.process_time() - started) / steps
    sizes = {"nodes": args.nodes, "running": args.running, "steps": steps}
    yield {**sizes, "first_step_ms": round(first_s * 1e3, 2), "step_ms": round(step_s * 1e3, 2)}


def _settle(cluster: SimCluster, engine: Engine) -> int:
    """Let everything happen that is due within a second; in how many steps."""
    until, steps = cluster.now + 1, 1
    run_cycle(cluster, engine)
    while (at := cluster.next_event_time()) is not None and at <= until:
        cluster.advance(at)
        run_cycle(cluster, engine)
        steps += 1
    cluster.advance(until)
    return steps


def _queue(gpus: int) -> spec.Queue:
    resources = [{"flavor": "any", "guaranteed": {GPU: gpus}}]
    body = {"namespaceSelector": {}, "resources": resources}
    return spec.Queue.model_validate({"metadata": {"name": "default"}, "spec": body})


def _job(name: str) -> spec.TrainingJob:
    template = {"spec": {"containers": [{"resources": {"limits": {GPU: 8}}}]}}
    role = {"name": "trainer", "template": template}
    body = {"roles": [role], "ttlSecondsAfterFinished": 0}
    return spec.TrainingJob.model_validate({"metadata": {"name": name}, "spec": body})


if __name__ == "__main__":
    main()
