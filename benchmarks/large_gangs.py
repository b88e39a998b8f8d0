"""One gang that is larger than its queue's guarantee, while other queues have a backlog: how busy the cluster stays,
and how long the gang waits. Simulated: results depend on no clock and no machine.

    python benchmarks/large_gangs.py
    python benchmarks/large_gangs.py --random 12

256 GPUs in 32 nodes; 2 or 4 teams with equal guarantees. All teams but the last have a backlog of jobs of 1 to 16 GPUs
that run for up to 4 hours: as much as fills the cluster twice at the start, and 1.25 times what it can run from then
on. The last team submits one gang of 96, 128 or 192 GPUs after an hour. Jobs declare their run times, or none does.
Each case is compared with the policy `backfill`, which knows no queues: first come, first served, with backfill behind
the first gang. The targets: at least 0.95 of the GPUs that are busy with `backfill` in the first 20 hours, and a wait
of at most 11 hours.

`--random N`: N random trees instead, with departments or without, unequal guarantees and limits. All queues but the
last get such jobs, of at most their guarantee; one to three large gangs come to random queues.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.api import spec
from muster.simulate import (
    POLICIES,
    RecordedWorkload,
    SimulationConfig,
    SimulationResult,
    TraceJob,
    TraceNode,
    WorkloadAssumptions,
    run,
)

NODES, GPUS_PER_NODE = 32, 8
GPUS = NODES * GPUS_PER_NODE
HOUR = 3600
GPU = "nvidia.com/gpu"
SIZES, LONGEST_S = (1, 2, 4, 8, 16), 4 * HOUR
LOAD, ARRIVALS_H, WINDOW_H = 1.25, 26, 20
LARGE, LARGE_AT, LARGE_RUNS_S = "large", HOUR, 3 * HOUR
BUSY_TARGET, WAIT_TARGET_H = 0.95, 11.0


@dataclass(frozen=True, slots=True)
class Case:
    """One workload of the grid."""

    teams: int
    gang_gpus: int
    declared: bool

    def workload(self) -> RecordedWorkload:
        """The jobs of all teams, from a fixed seed."""
        draw = random.Random(f"{self.teams}")
        busy = [f"team-{i}" for i in range(self.teams - 1)]
        jobs = list(backlog(draw, busy))
        jobs.append(_job(LARGE, LARGE_AT, LARGE_RUNS_S, self.gang_gpus, f"team-{self.teams - 1}"))
        return RecordedWorkload(nodes(), tuple(jobs))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a workload under one policy."""

    busy_gpus: float  # in the first 20 hours, on average
    waits_h: dict[str, float]  # of large gangs, by name; those that never started are missing
    preemptions: int

    @property
    def longest_wait_h(self) -> float:
        """Infinite if none started."""
        return max(self.waits_h.values(), default=math.inf)

    @classmethod
    def of(cls, result: SimulationResult) -> Outcome:
        """From the runs of its pods."""
        rows, started, gpu_s = result.job_rows, dict[str, float](), 0.0
        for one in result.pod_runs:
            row = rows[one.job]
            gpu_s += row.gpus_per_pod * max(0.0, min(one.end_s, WINDOW_H * HOUR) - one.start_s)
            started[row.name] = min(one.start_s, started.get(row.name, one.start_s))
        submitted = {row.name: row.submit_s for row in rows.values()}
        waits = {name: (at - submitted[name]) / HOUR for name, at in started.items() if name.startswith(LARGE)}
        return cls(gpu_s / (WINDOW_H * HOUR), waits, result.preemptions)


def nodes() -> tuple[TraceNode, ...]:
    """The cluster."""
    return tuple(TraceNode(f"n{i}", GPUS_PER_NODE, 96_000, 1 << 20, "h200") for i in range(NODES))


def backlog(draw: random.Random, teams: list[str]) -> Iterator[TraceJob]:
    """Small jobs, in turn of the teams."""
    mean_gpu_s = sum(SIZES) / len(SIZES) * (LONGEST_S + 600) / 2
    first = round(2 * GPUS / (sum(SIZES) / len(SIZES)))
    at, number = 0.0, 0
    while at < ARRIVALS_H * HOUR:
        if number >= first:
            at += draw.expovariate(LOAD * GPUS / mean_gpu_s)
        yield _job(
            f"small-{number}", round(at), draw.randint(600, LONGEST_S), draw.choice(SIZES), teams[number % len(teams)]
        )
        number += 1


def _job(name: str, at: float, runtime_s: int, gpus: int, queue: str) -> TraceJob:
    pods = max(1, gpus // GPUS_PER_NODE)
    return replace(TraceJob(name, at, runtime_s, pods, gpus // pods, pods), queue=queue)


def outcome(
    workload: RecordedWorkload, policy: str, *, declared: bool, queues: tuple[spec.Queue, ...] | None = None
) -> Outcome:
    """The workload under a policy. A declared run time is the true one."""
    assumptions = WorkloadAssumptions(bound_factor=1.0 if declared else None)
    return Outcome.of(run(workload, POLICIES[policy], SimulationConfig(assumptions, queues)))


def grid() -> Iterator[Case]:
    """All cases."""
    for teams in (2, 4):
        for gang_gpus in (96, 128, 192):
            for declared in (True, False):
                yield Case(teams, gang_gpus, declared)


def print_grid() -> None:
    """One row of a Markdown table for each case."""
    _print_row("teams", "gang, GPUs", "run times", *_COLUMNS, "preemptions", "targets")
    _print_row(*["---"] * (5 + len(_COLUMNS)))
    for case in grid():
        ours, other = (outcome(case.workload(), policy, declared=case.declared) for policy in ("muster", "backfill"))
        met = {"busy": ours.busy_gpus >= BUSY_TARGET * other.busy_gpus, "wait": ours.longest_wait_h <= WAIT_TARGET_H}
        missed = [name for name, is_met in met.items() if not is_met]
        targets = f"missed: {', '.join(missed)}" if missed else "met"
        declared = "declared" if case.declared else "not declared"
        _print_row(case.teams, case.gang_gpus, declared, *_compared(ours, other), ours.preemptions, targets)


_COLUMNS = ("busy GPUs", "of `backfill`", "ratio", "longest wait, h", "of `backfill`")


def _compared(ours: Outcome, other: Outcome) -> tuple[str, ...]:
    ratio = ours.busy_gpus / other.busy_gpus
    waits = (f"{one.longest_wait_h:.1f}" for one in (ours, other))
    return f"{ours.busy_gpus:.0f}", f"{other.busy_gpus:.0f}", f"{ratio:.3f}", *waits


def _print_row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


@dataclass(frozen=True, slots=True)
class RandomCase:
    """A random tree and its workload."""

    queues: tuple[spec.Queue, ...]
    workload: RecordedWorkload
    large: tuple[str, ...]  # GPUs and queue of each
    declared: bool

    @classmethod
    def of(cls, seed: int) -> RandomCase:
        """The case of a seed."""
        draw = random.Random(seed)
        departments = [f"d{i}" for i in range(draw.choice((0, 0, 2)))]
        weights = [draw.choice((1, 1, 2, 4)) for _ in range(draw.randint(2, 5))]
        guaranteed = {f"q{i}": GPUS * weight // sum(weights) for i, weight in enumerate(weights)}
        limits = {name: draw.choice((None, None, GPUS * 3 // 4)) for name in guaranteed}
        queues = [_queue("root", None, GPUS), *(_queue(name, "root", 0) for name in departments)]
        for name, amount in guaranteed.items():
            queues.append(_queue(name, draw.choice([*departments, "root"]), amount, limits[name]))
        small = [job for job in backlog(draw, list(guaranteed)[:-1]) if _gpus(job) <= guaranteed[job.queue]]
        large = []
        for number in range(draw.randint(1, 3)):
            name = draw.choice(list(guaranteed))
            sizes = [size for size in (96, 128, 192, 224) if size <= (limits[name] or GPUS)]
            size, at = draw.choice(sizes), draw.randint(0, 8) * HOUR
            large.append(_job(f"{LARGE}-{number}", at, LARGE_RUNS_S, size, name))
        named = tuple(f"{_gpus(job)} of {guaranteed[job.queue]}" for job in large)
        workload = RecordedWorkload(nodes(), tuple(sorted([*small, *large], key=lambda job: job.submit_s)))
        return cls(tuple(queues), workload, named, draw.random() < 0.5)


def _gpus(job: TraceJob) -> int:
    return job.pods * job.gpus_per_pod


def _queue(name: str, parent: str | None, gpus: int, limit: int | None = None) -> spec.Queue:
    quota: dict[str, object] = {"flavor": "h200", "guaranteed": {GPU: gpus}}
    body: dict[str, object] = {
        "parent": parent,
        "namespaceSelector": {},
        "resources": [quota | ({"limit": {GPU: limit}} if limit else {})],
    }
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": body})


def print_random(count: int) -> None:
    """One row for each random tree."""
    _print_row("seed", "queues", "large gangs, GPUs of the guarantee", "run times", *_COLUMNS, "preemptions")
    _print_row(*["---"] * (5 + len(_COLUMNS)))
    for seed in range(count):
        case = RandomCase.of(seed)
        ours, other = (
            outcome(case.workload, policy, declared=case.declared, queues=case.queues)
            for policy in ("muster", "backfill")
        )
        missing = len(case.large) - len(ours.waits_h)
        assert not missing, f"seed {seed}: {missing} large gangs never started"
        declared = "declared" if case.declared else "not declared"
        _print_row(seed, len(case.queues), ", ".join(case.large), declared, *_compared(ours, other), ours.preemptions)


def main() -> None:
    """Read the command line, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="N random trees instead of the grid")
    args = parser.parse_args()
    if args.random is None:
        print_grid()
    else:
        print_random(args.random)


if __name__ == "__main__":
    main()
