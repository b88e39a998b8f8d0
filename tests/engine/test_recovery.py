"""State that an engine drops, since a write is uncertain or a cycle failed, is rebuilt completely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.cluster import RemoveJob, Write
from muster.engine import Engine
from muster.errors import Conflict
from muster.simulate import JobBehavior
from muster.workload.conditions import find_condition
from muster.workload.observed import ObservedState


class Contended(ScenarioCluster):
    """Another client removes the job first, in every cycle that removes one."""

    def apply(self, writes: Sequence[Write]) -> None:
        super().apply(writes)
        if any(isinstance(write, RemoveJob) for write in writes):
            raise Conflict("another job changed meanwhile")


class Broken(dict[str, Any]):
    """Nothing can be looked up in it."""

    def get(self, key: str, default: Any = None) -> Any:
        raise RuntimeError(f"cannot look up {key}")


def without(observed: ObservedState, part: str) -> ObservedState:
    """The observed state with a part that nothing can be looked up in."""
    broken: dict[str, Any] = {part: Broken()}
    return replace(observed, **broken)


def test_usage_ends_with_a_job_that_goes_while_the_engine_forgot_what_it_knew() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    cluster.submit(job("a"), JobBehavior(100_000.0))
    engine = Engine()
    settle(engine, cluster, until=30)
    assert engine._state.fair_share.has_charges
    engine.recheck()
    observed = cluster.observe()
    engine.reconcile(replace(observed, workloads=(), pods={}, heartbeats={}, now=observed.now + 1))
    assert not engine._state.fair_share.has_charges


def test_usage_ends_with_a_job_that_goes_in_the_very_cycle_whose_writes_do_not_all_happen() -> None:
    cluster = Contended(nodes(4), [flavor()], [queue(gpus=32)])
    uid = cluster.submit(job("a"), JobBehavior(100_000.0))
    engine = Engine()
    settle(engine, cluster, until=30)
    cluster.delete(uid)
    settle(engine, cluster, until=400)
    assert not cluster.has_job(uid)
    assert not engine._state.fair_share.has_charges


def wait_times(engine: Engine) -> set[str]:
    """The jobs of which is known when their wait was written."""
    return {uid for uid, entry in engine._state.jobs.items() if entry.wait_written_at is not None}


def test_wait_statuses_of_a_job_removed_while_the_caches_were_reset_are_dropped() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    for name in ("a", "b"):
        cluster.submit(job(name), JobBehavior(100_000.0))
    engine = Engine()
    settle(engine, cluster, until=30)
    assert wait_times(engine) == {"uid-default-b"}
    engine.recheck()
    assert wait_times(engine) == {"uid-default-b"}, "when they were written still counts"
    observed = cluster.observe()
    engine.reconcile(replace(observed, workloads=observed.workloads[:1]))
    assert wait_times(engine) == set()


@pytest.mark.parametrize("part", ["heartbeats", "pod_rejections"])
def test_what_changed_before_a_cycle_that_fails_is_looked_at_in_the_next_one(part: str) -> None:
    """Lifecycles are reconciled with heartbeats, the snapshot is built with rejections."""
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    first, *_ = (cluster.submit(job(name, 1), JobBehavior(100_000.0)) for name in ("a", "b", "c"))
    settle(engine, cluster, until=30)
    cluster.edit(first, cancel=True)
    fresh = cluster.submit(job("d", 1), JobBehavior(100_000.0))
    with pytest.raises(RuntimeError, match="cannot look up"):
        engine.reconcile(without(cluster.observe(), part))
    settle(engine, cluster, until=100)
    assert [cluster.job(uid).status.phase for uid in cluster.job_uids()] == [
        "Cancelled",
        "Running",
        "Running",
        "Pending",
    ]
    assert find_condition(cluster.job(fresh).status, "Admitted") is not None, "its status says why it waits"
