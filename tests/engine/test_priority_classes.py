from __future__ import annotations

from dataclasses import replace

from tests.engine.objects import flavor, job, nodes, queue
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.cluster import WriteStatus
from muster.engine import CycleResult, Engine
from muster.model import Admit, Nominate, Wait
from muster.simulate import JobBehavior


def test_priority_classes_give_their_value() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    cluster.submit(job("plain", 1), JobBehavior(10))
    urgent = cluster.submit(job("urgent", 1, priorityClassName="urgent"), JobBehavior(10))
    observed = replace(cluster.observe(), priority_classes={"urgent": 1000})
    admits = [decision.gang_uid for decision in engine.reconcile(observed).decisions if isinstance(decision, Admit)]
    assert admits == [urgent]


def with_classes(engine: Engine, cluster: ScenarioCluster, classes: dict[str, int]) -> CycleResult:
    """A cycle in a cluster that has these priority classes."""
    cycle = engine.reconcile(replace(cluster.observe(), priority_classes=classes))
    cluster.apply(cycle.writes)
    return cycle


def test_a_job_whose_priority_class_does_not_exist_waits_until_it_does() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a", 1, priorityClassName="urgent"), JobBehavior(10))
    assert with_classes(engine, cluster, {"other": 5}).waits[uid].reason == "PriorityClassNotFound"
    status = cluster.job(uid).status
    assert (status.phase, status.reason, status.priority) == ("Pending", "PriorityClassNotFound", None)
    with_classes(engine, cluster, {"urgent": 1000})
    assert cluster.job(uid).status.phase == "Admitted"


def test_a_running_job_keeps_its_priority_when_its_class_is_deleted() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    first = cluster.submit(job("a", 1, priorityClassName="urgent"), JobBehavior(1000))
    with_classes(engine, cluster, {"urgent": 1000})
    with_classes(engine, cluster, {"urgent": 1000})
    assert (cluster.job(first).status.phase, cluster.job(first).status.priority) == ("Running", 1000)
    second = cluster.submit(job("b", 1, priority=999), JobBehavior(1000))
    decisions = with_classes(engine, cluster, {}).decisions
    assert [(type(one), one.gang_uid) for one in decisions if not isinstance(one, Nominate)] == [(Wait, second)]
    assert cluster.job(first).status.phase == "Running"


def test_the_priority_in_the_status_follows_the_value_of_the_class_with_the_next_write() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    plain = cluster.submit(job("plain", 1, priority=7), JobBehavior(1000))
    named = cluster.submit(job("named", 1, priorityClassName="low"), JobBehavior(10))
    with_classes(engine, cluster, {"low": 1})
    with_classes(engine, cluster, {"low": 1})
    assert [cluster.job(uid).status.priority for uid in (plain, named)] == [7, 1]
    assert not [w for w in with_classes(engine, cluster, {"low": 2}).writes if isinstance(w, WriteStatus)]
    cluster.edit(named, suspend=True)
    with_classes(engine, cluster, {"low": 2})
    assert cluster.job(named).status.priority == 2
