"""A node that is drained, in the simulation: who is on it leaves with a checkpoint and goes on elsewhere."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import DRAIN_TAINT, OUT_OF_SERVICE_TAINT
from muster.engine import Engine, check_feasibility
from muster.kinds.trainingjob.adapter import submitted_anew
from muster.model import NodeTaint
from muster.simulate import JobBehavior


def drain(cluster: ScenarioCluster, name: str) -> None:
    node = cluster.nodes[name]
    cluster.restore_node(replace(node, taints=(*node.taints, NodeTaint(DRAIN_TAINT))))


def undrain(cluster: ScenarioCluster, name: str) -> None:
    node = cluster.nodes[name]
    cluster.restore_node(replace(node, taints=tuple(taint for taint in node.taints if taint.key != DRAIN_TAINT)))


def nodes_of(one: spec.TrainingJob) -> set[str]:
    return {share.node for part in one.status.placement for share in part.nodes}


def test_a_gang_on_a_drained_node_goes_on_elsewhere_and_nothing_counts_as_a_failure() -> None:
    cluster = ScenarioCluster(nodes(3), [flavor()], [queue(gpus=24)])
    engine = Engine()
    uid = cluster.submit(
        job("a", failurePolicy={"maxRestarts": 0}), JobBehavior(100, stop_s=1, checkpoint_on_stop=True)
    )
    settle(engine, cluster, until=40)
    first = nodes_of(cluster.job(uid))
    drained = min(first)
    drain(cluster, drained)
    settle(engine, cluster, until=50)
    status = cluster.job(uid).status
    assert status.phase == "Running"
    assert nodes_of(cluster.job(uid)) == set(cluster.nodes) - {drained}
    assert (status.attempt, status.restarts, status.node_losses, status.blamed_nodes) == (1, 0, 0, [])
    settle(engine, cluster, until=105)
    assert cluster.job(uid).status.phase == "Succeeded", "what it did before it left was kept"


def test_a_gang_waits_while_its_only_capacity_is_drained_and_comes_back_after() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    tolerant = job("a")
    role = tolerant.spec.roles[0].model_dump(by_alias=True)
    role["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    uid = cluster.submit(job("a", roles=[role]), JobBehavior(1000))
    settle(engine, cluster, until=5)
    drain(cluster, "n0")
    settle(engine, cluster, until=60)
    assert cluster.job(uid).status.phase == "Pending", "though its pods tolerate every taint"
    undrain(cluster, "n0")
    settle(engine, cluster, until=61)
    assert cluster.job(uid).status.phase == "Running"


def test_a_drained_node_does_not_make_a_job_too_large_for_the_cluster() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    drain(cluster, "n0")
    assert check_feasibility(submitted_anew(job("a"), cluster.now), cluster.observe()) is None


def test_while_a_gang_leaves_a_drained_node_no_gang_is_stopped_for_capacity_that_it_comes_back_to() -> None:
    cluster = ScenarioCluster(nodes(4), [flavor()], [queue(gpus=32)])
    engine = Engine()
    uid = cluster.submit(job("a", priority=5), JobBehavior(1000, stop_s=10))
    low = cluster.submit(job("low", pods=1), JobBehavior(1000))
    settle(engine, cluster, until=40)
    wide = cluster.submit(
        job("wide", pods=3, priority=3), JobBehavior(1000)
    )  # the idle node and that of `low` are too few
    settle(engine, cluster, until=45)
    first = nodes_of(cluster.job(uid))
    drain(cluster, min(first))
    settle(engine, cluster, until=100)
    assert nodes_of(cluster.job(uid)) - first == set(cluster.nodes) - first - nodes_of(cluster.job(low))
    assert (cluster.job(low).status.phase, cluster.job(low).status.attempt) == ("Running", 0)
    assert cluster.job(wide).status.phase == "Pending"
    assert {event.reason for event in cluster.events} == {"Admitted", "Drained"}


def test_a_higher_priority_takes_the_capacity_of_a_gang_that_leaves_a_drained_node_before_it_comes_back() -> None:
    cluster = ScenarioCluster(nodes(2), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a"), JobBehavior(1000, stop_s=10))
    settle(engine, cluster, until=40)
    drain(cluster, "n0")
    settle(engine, cluster, until=45)
    high = cluster.submit(job("high", pods=1, priority=9), JobBehavior(1000))
    settle(engine, cluster, until=100)
    assert nodes_of(cluster.job(high)) == {"n1"}
    status = cluster.job(uid).status
    assert (status.phase, status.attempt, status.nomination) == ("Pending", 1, None)
    assert [event.reason for event in cluster.events if event.job_uid == uid] == ["Admitted", "Drained", "Preempted"]


def test_a_gang_that_tolerates_every_taint_is_lost_once_with_a_node_out_of_service_and_waits_for_another() -> None:
    cluster = ScenarioCluster(nodes(1), [flavor()], [queue()])
    engine = Engine()
    document = job("a", 1).model_dump(mode="json", by_alias=True, include={"metadata": {"name"}, "spec": True})
    document["spec"]["roles"][0]["template"]["spec"]["tolerations"] = [{"operator": "Exists"}]
    wanted = spec.TrainingJob.model_validate(document)
    uid = cluster.submit(wanted, JobBehavior(100, stop_s=1))
    settle(engine, cluster, until=10)
    (name,) = nodes_of(cluster.job(uid))
    node = cluster.nodes[name]
    cluster.restore_node(replace(node, taints=(NodeTaint(OUT_OF_SERVICE_TAINT, effect="NoExecute"),)))
    settle(engine, cluster, until=60)
    status = cluster.job(uid).status
    assert (status.phase, status.node_losses) == ("Pending", 1)
    cluster.restore_node(node)
    settle(engine, cluster, until=400)
    assert cluster.job(uid).status.phase == "Succeeded"
