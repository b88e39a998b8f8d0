"""Usage goes on being counted whatever happens to queues: edits, new ones, new leaders, others that write statuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.engine import Engine, run_cycle
from muster.simulate import JobBehavior

GPU = "nvidia.com/gpu"
HALF_LIFE_S = 10_000_000  # nothing fades while a test lasts


def slow(name: str = "default") -> spec.Queue:
    return queue(name, halfLifeSeconds=HALF_LIFE_S)


def with_uid(one: spec.Queue, uid: str, usage: float | None = None, at: float = 0.0) -> spec.Queue:
    """As it is anew: another uid, and this usage in its status."""
    written = None
    if usage is not None:
        cell = spec.FairShareUsage(flavor="any", resource=GPU, resource_seconds=usage)
        written = spec.FairShareStatus(usage=[cell], at=at)
    metadata = one.metadata.model_copy(update={"uid": uid})
    return one.model_copy(update={"metadata": metadata, "status": spec.QueueStatus(fair_share=written)})


def gpu_seconds(engine: Engine, now: float, name: str = "default") -> float:
    status = engine._state.fair_share.status(name, now)
    return 0.0 if status is None else {one.resource: one.resource_seconds for one in status.usage}.get(GPU, 0.0)


def running(until: float) -> tuple[Engine, ScenarioCluster]:
    """A job that takes 16 GPUs and goes on for long."""
    cluster = ScenarioCluster(nodes(2), [flavor()], [slow()])
    cluster.submit(job("a"), JobBehavior(100_000.0))
    engine = Engine()
    settle(engine, cluster, until=until)
    return engine, cluster


def edit(cluster: ScenarioCluster) -> None:
    old = cluster.observe().queues[0]
    wanted = old.spec.model_copy(update={"weight": old.spec.weight + 1.0})
    cluster.put_queue(old.model_copy(update={"spec": wanted}))


def test_an_edit_of_a_queue_does_not_stop_the_count_of_what_runs() -> None:
    engine, cluster = running(130)
    assert cluster.observe().queues[0].status.fair_share is not None, "it was written meanwhile"
    edit(cluster)
    settle(engine, cluster, until=230)
    assert gpu_seconds(engine, 230) == pytest.approx(16 * 230, rel=1e-4)


def test_a_new_queue_does_not_stop_the_count_in_others() -> None:
    engine, cluster = running(130)
    cluster.put_queue(slow("another"))
    settle(engine, cluster, until=230)
    assert gpu_seconds(engine, 230) == pytest.approx(16 * 230, rel=1e-4)


def test_usage_is_not_negative_after_an_edit_and_the_end_of_a_job() -> None:
    engine, cluster = running(130)
    edit(cluster)
    settle(engine, cluster, until=200)
    cluster.delete("uid-default-a")
    settle(engine, cluster, until=1000)
    assert not engine._state.fair_share.has_charges
    ended = gpu_seconds(engine, 1000)
    assert 16 * 200 <= ended <= 16 * 300, "it was asked to stop, and had some time to"
    assert gpu_seconds(engine, 100_000) == pytest.approx(ended, rel=0.01)


def test_what_a_queue_used_before_its_half_life_was_edited_faded_by_the_old_one() -> None:
    engine, cluster = running(130)
    cluster.put_queue(queue(halfLifeSeconds=60))
    run_cycle(cluster, engine)
    assert gpu_seconds(engine, 130) == pytest.approx(16 * 130, rel=1e-4)


def test_a_status_that_another_writer_changed_later_changes_nothing() -> None:
    engine, cluster = running(130)
    observed = cluster.observe()
    later = with_uid(observed.queues[0], "", usage=77.0, at=125.0)
    changed = later.model_copy(update={"spec": later.spec.model_copy(update={"weight": 3.0})})
    engine.reconcile(replace(observed, queues=(changed,)))
    assert gpu_seconds(engine, 130) == pytest.approx(16 * 130, rel=1e-4)


@pytest.mark.parametrize("same_spec", [True, False])
def test_a_queue_that_was_deleted_and_created_anew_begins_anew(same_spec: bool) -> None:
    engine, cluster = running(130)
    observed = cluster.observe()
    first = with_uid(observed.queues[0], "1", usage=gpu_seconds(engine, 130), at=130.0)
    engine.reconcile(replace(observed, queues=(first,)))
    wanted = first.spec if same_spec else first.spec.model_copy()
    engine.reconcile(replace(observed, queues=(with_uid(first, "2").model_copy(update={"spec": wanted}),)))
    assert gpu_seconds(engine, 130) == 0
    assert gpu_seconds(engine, 140) == pytest.approx(160, rel=1e-4), "what runs there still counts from now on"


def test_a_queue_that_is_gone_takes_its_usage_along() -> None:
    engine, cluster = running(130)
    observed = cluster.observe()
    engine.reconcile(replace(observed, queues=()))
    assert gpu_seconds(engine, 130) == 0
    engine.reconcile(replace(observed, now=140.0, queues=(slow(),)))
    assert gpu_seconds(engine, 150) == pytest.approx(160, rel=1e-4)


def test_a_queue_whose_metadata_cannot_be_read_for_a_while_is_the_same_one() -> None:
    engine, cluster = running(130)
    observed = cluster.observe()
    for uid in ("1", "", "1"):
        engine.reconcile(replace(observed, queues=(with_uid(observed.queues[0], uid, usage=5.0),)))
    assert gpu_seconds(engine, 130) == pytest.approx(16 * 130, rel=1e-4)


def test_a_new_leader_counts_what_runs_in_a_queue_without_usage_since_it_was_admitted() -> None:
    _, cluster = running(130)
    observed = cluster.observe()
    engine = Engine()
    engine.reconcile(replace(observed, queues=(with_uid(observed.queues[0], "1"),)))
    assert gpu_seconds(engine, 130) == pytest.approx(16 * 130, rel=1e-4)


def test_a_new_leader_counts_on_from_a_status_whatever_its_clock_says() -> None:
    _, cluster = running(130)
    observed = cluster.observe()
    for at, more_s in ((100.0, 30.0), (135.0, 0.0)):
        engine = Engine()
        engine.reconcile(replace(observed, queues=(with_uid(observed.queues[0], "1", usage=500.0, at=at),)))
        assert gpu_seconds(engine, 130) == pytest.approx(500 + 16 * more_s, rel=1e-4)
        assert gpu_seconds(engine, 140) == pytest.approx(500 + 16 * (more_s + 10), rel=1e-4)


def test_negative_usage_in_a_status_counts_as_zero() -> None:
    observed = running(130)[1].observe()
    engine = Engine()
    engine.reconcile(replace(observed, queues=(with_uid(observed.queues[0], "1", usage=-1e6, at=130.0),)))
    assert gpu_seconds(engine, 140) == pytest.approx(160, rel=1e-4)


def test_a_job_that_was_out_of_sight_for_a_while_is_counted_once() -> None:
    engine, cluster = running(130)
    observed = cluster.observe()
    engine.reconcile(replace(observed, workloads=(), pods={}, heartbeats={}))
    engine.reconcile(replace(observed, now=190.0))
    assert gpu_seconds(engine, 190) == pytest.approx(16 * 190, rel=1e-4)
