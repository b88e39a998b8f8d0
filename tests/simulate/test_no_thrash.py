"""Two queues share two nodes, and no job has a maximum run time: reclaiming must not lose most of the work."""

from __future__ import annotations

import functools
from random import Random

import pytest

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

JOBS = 60


@functools.cache
def replayed(policy: str, seed: int) -> SimulationResult:
    """Jobs of 1 to 16 GPUs that arrive faster than two nodes can run them."""
    rng = Random(seed)
    nodes = tuple(TraceNode(f"n{i}", 8, 96_000, 1 << 20, "h200") for i in range(2))
    jobs = []
    for i in range(JOBS):
        pods, gpus = rng.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 4), (4, 4), (5, 2), (16, 1)))
        runtime_s, queue = rng.choice((120.0, 600.0, 1800.0, 7200.0)), rng.choice(("a", "b"))
        jobs.append(TraceJob(f"job{i}", 60.0 * i, runtime_s, pods, gpus, pods, queue=queue))
    return run(
        RecordedWorkload(nodes, tuple(jobs)),
        POLICIES[policy],
        SimulationConfig(WorkloadAssumptions(stop_s=STOP_S, checkpoint_every_s=600.0)),
    )


STOP_S = 10.0  # a pod that is stopped at once runs no longer than this
SEEDS = (0, 1)
seeds = pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])


@seeds
def test_all_jobs_complete(seed: int) -> None:
    assert replayed("muster", seed).completed == JOBS, replayed("muster", seed).notes


@seeds
def test_no_gang_is_evicted_just_after_it_started(seed: int) -> None:
    runs = [
        run_of_pod
        for run_of_pod in replayed("muster", seed).pod_runs
        if run_of_pod.outcome in ("reclaimed", "preempted")
    ]
    assert [run_of_pod for run_of_pod in runs if run_of_pod.end_s - run_of_pod.start_s <= STOP_S] == []


@seeds
def test_there_are_fewer_preemptions_than_jobs(seed: int) -> None:
    assert replayed("muster", seed).preemptions < JOBS


def test_some_guarantees_are_reclaimed() -> None:
    assert any(replayed("muster", seed).preemptions for seed in SEEDS)


@seeds
def test_reclaiming_lengthens_the_makespan_by_at_most_a_quarter_compared_with_fifo(seed: int) -> None:
    assert replayed("muster", seed).makespan_s <= 1.25 * replayed("fifo", seed).makespan_s
