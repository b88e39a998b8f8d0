"""Two queues that fight over two nodes, and nobody says how long it runs: taking back must not eat up the work."""

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
    """Jobs of 1 to 16 GPUs that come quicker than two nodes can serve them."""
    draw = Random(seed)
    nodes = tuple(TraceNode(f"n{i}", 8, 96_000, 1 << 20, "h200") for i in range(2))
    jobs = []
    for i in range(JOBS):
        pods, gpus = draw.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 4), (4, 4), (5, 2), (16, 1)))
        runtime_s, queue = draw.choice((120.0, 600.0, 1800.0, 7200.0)), draw.choice(("a", "b"))
        jobs.append(TraceJob(f"job{i}", 60.0 * i, runtime_s, pods, gpus, pods, queue=queue))
    return run(
        RecordedWorkload(nodes, tuple(jobs)),
        POLICIES[policy],
        SimulationConfig(WorkloadAssumptions(stop_s=STOP_S, checkpoint_every_s=600.0)),
    )


STOP_S = 10.0  # a pod that is told to leave at once has stayed no longer
SEEDS = (0, 1)
seeds = pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])


@seeds
def test_everyone_is_served(seed: int) -> None:
    assert replayed("muster", seed).completed == JOBS, replayed("muster", seed).notes


@seeds
def test_no_gang_is_evicted_at_the_instant_at_which_it_started(seed: int) -> None:
    stays = [stay for stay in replayed("muster", seed).pod_runs if stay.outcome in ("reclaimed", "preempted")]
    assert [stay for stay in stays if stay.end_s - stay.start_s <= STOP_S] == []


@seeds
def test_there_are_fewer_preemptions_than_jobs(seed: int) -> None:
    assert replayed("muster", seed).preemptions < JOBS


def test_guarantees_are_taken_back_at_times() -> None:
    assert any(replayed("muster", seed).preemptions for seed in SEEDS)


@seeds
def test_taking_back_costs_at_most_a_quarter_of_the_time_that_first_come_first_served_needs(seed: int) -> None:
    assert replayed("muster", seed).makespan_s <= 1.25 * replayed("fifo", seed).makespan_s
