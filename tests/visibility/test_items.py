"""Items of the read API: what they say of queues, jobs, nodes and preemptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.objects import flavor, nodes
from tests.state.observed_states import NOW, PLACED, admitted, named, observed_state, pod
from tests.visibility.states import failed, in_namespace, leader, names, read, two_queues

from muster.api.spec import EvictionStatus
from muster.errors import NotFound
from muster.model import Placement, RolePlacement, Wait
from muster.visibility.items import PreemptionLog
from muster.visibility.state import ReadState
from muster.workload import transitions
from muster.workload.timeouts import Timeouts
from muster.workload.transitions import finish

GPU = "nvidia.com/gpu"


def test_a_queue_has_its_usage_and_the_numbers_of_its_jobs() -> None:
    found = read(leader(two_queues(admitted("a"), named("b"))), "queues")
    assert names(found) == ["root", "default"]
    root, leaf = found["items"]
    assert [(one["pending"], one["admitted"], one["depth"]) for one in (root, leaf)] == [(1, 1, 0), (1, 1, 1)]
    assert leaf["parent"] == "root"
    (usage,) = leaf["resources"]
    assert (usage["used"][GPU], usage["borrowed"][GPU], usage["available"][GPU]) == ("16", "16", "0")
    assert root["resources"][0]["guaranteed"] == {GPU: "16"}


def test_a_pending_job_has_reason_position_and_estimate_of_the_last_cycle() -> None:
    job = named("b")
    wait = Wait(job.metadata.uid, "InsufficientResources", "needs 16 GPUs; 8 are free", 3, NOW + 60)
    (item,) = read(leader(two_queues(job), {"b": wait}), "pendingjobs")["items"]
    assert (item["reason"], item["message"]) == ("InsufficientResources", "needs 16 GPUs; 8 are free")
    assert (item["position"], item["estimatedStart"]) == (3, "1970-01-01T00:17:40.000000Z")
    (job_item,) = read(leader(two_queues(job), {"b": wait}), "jobs")["items"]
    assert {key: job_item[key] for key in ("reason", "message", "position", "estimatedStart")} == {
        key: item[key] for key in ("reason", "message", "position", "estimatedStart")
    }


def test_a_job_that_was_preempted_says_so_until_it_is_admitted_again() -> None:
    one = admitted("a")
    evicting = transitions.evict(one.status, "Preempted", "preempted for default/b", NOW - 9)
    waiting = transitions.requeue(evicting, NOW - 5, Timeouts(), [], 600.0)
    again = transitions.admit(waiting, PLACED, NOW)
    found = []
    for status in (one.status, evicting, waiting, again):
        state = leader(two_queues(one.model_copy(update={"status": status})))
        items = [*read(state, "jobs")["items"], *read(state, "pendingjobs")["items"]]
        found.append([(item["kind"], item.get("eviction", {}).get("reason")) for item in items])
    assert found == [
        [("JobSummary", None)],
        [("JobSummary", "Preempted")],
        [("JobSummary", "Preempted"), ("PendingJob", "Preempted")],
        [("JobSummary", None)],
    ]


def test_a_standby_answers_with_the_written_positions_and_says_which_cycle_they_are_of() -> None:
    wait = Wait("b", "QuotaExceeded", "no quota", 2)
    job = named("b")
    status = transitions.set_waiting(job.status, wait, NOW - 30).model_copy(update={"last_cycle": "t-6"})
    meta = job.metadata.model_copy(update={"resource_version": "12"})
    written = job.model_copy(update={"metadata": meta, "status": status})
    old = admitted("a")
    old = old.model_copy(
        update={
            "metadata": old.metadata.model_copy(update={"resource_version": "9"}),
            "status": old.status.model_copy(update={"last_cycle": "t-2"}),
        }
    )
    standby = ReadState(two_queues(written, old), None, "standby", leading=False)
    found = read(standby, "pendingjobs")
    assert (found["items"][0]["position"], found["items"][0]["reason"]) == (2, "QuotaExceeded")
    assert found["source"] == {
        "identity": "standby", "leading": False, "observedAt": "1970-01-01T00:16:40.000000Z", "cycle": "t-6",
    }  # fmt: skip
    assert read(standby, "queues")["items"] == read(leader(standby.observed), "queues")["items"]


def test_one_job_has_conditions_and_placement_and_no_template() -> None:
    state = leader(two_queues(in_namespace(admitted("a"), "team")))
    found = read(state, "namespaces/team/jobs/a")
    assert (found["kind"], found["phase"], found["nodes"]) == ("JobSummary", "Admitted", ["n0", "n1"])
    assert [part["role"] for part in found["placement"]] == ["trainer"]
    assert {condition["type"] for condition in found["conditions"]} == {"Admitted", "PodsReady"}
    assert "template" not in str(found)
    (listed,) = read(state, "jobs")["items"]
    assert found.pop("timeSpent")["cause"] == "unknown"
    assert {**found, "conditions": [], "placement": []} == listed


def test_a_failed_job_has_the_line_of_its_log_that_explains_it() -> None:
    job = failed("a", "step 7\nRuntimeError: no space\n")
    (found,) = read(leader(two_queues(job)), "jobs")["items"]
    assert (found["phase"], found["error"]) == ("Failed", "RuntimeError: no space")
    restarted = job.model_copy(update={"status": job.status.model_copy(update={"phase": "Pending"})})
    (found,) = read(leader(two_queues(restarted)), "jobs")["items"]
    assert found["error"] == ""
    (found,) = read(leader(two_queues(failed("a", "x" * 4000))), "jobs")["items"]
    assert found["error"] == "x" * 300


@pytest.mark.parametrize("route", ["namespaces/default/jobs/none", "namespaces/default/pendingjobs/a", "queues/none"])
def test_an_object_that_does_not_exist_is_not_found(route: str) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        read(leader(two_queues(admitted("a"))), route)


def test_a_node_has_usage_and_the_pods_of_readable_namespaces() -> None:
    mine, other = in_namespace(admitted("a"), "mine"), in_namespace(named("b"), "other")
    pods = {"a": (pod(mine, 0, "n0"), pod(mine, 1, "n1", phase="Succeeded")), "b": (pod(other, 0, "n0"),)}
    state = leader(replace(two_queues(mine, other), pods=pods))
    first, second = read(state, "nodes", lambda namespace: namespace == "mine")["items"]
    assert (first["podCount"], [one["namespace"] for one in first["pods"]]) == (2, ["mine"])
    assert (second["podCount"], second["pods"]) == (0, [])
    (alone, _) = read(leader(two_queues(mine)), "nodes")["items"]
    assert (alone["flavor"], alone["used"][GPU], alone["allocatable"][GPU]) == ("any", "8", "8")


def test_a_node_names_the_jobs_placed_on_it_and_counts_those_of_other_namespaces() -> None:
    mine, other = in_namespace(admitted("a"), "mine"), in_namespace(admitted("b"), "other")
    done = named("c").model_copy(update={"status": finish(admitted("c").status, "Complete", "Completed", "", NOW)})
    state = leader(two_queues(mine, other, in_namespace(done, "mine")))
    node = read(state, "nodes/n1", lambda namespace: namespace == "mine")
    assert (node["jobCount"], node["jobs"]) == (2, [{"namespace": "mine", "name": "a"}])


def test_preemptions_are_kept_after_their_jobs_have_started_again() -> None:
    log, job = PreemptionLog(), admitted("a")
    eviction = EvictionStatus.model_construct(beneficiary="b", reason="Reclaimed", deadline=NOW + 30)
    evicted = transitions.evict(job.status, "Reclaimed", "reclaimed for default/b", NOW, eviction=eviction)
    again: Placement = (RolePlacement("trainer", "any", (("n1", 2),)),)
    resized = transitions.resize(job.status, again, "Preempted", NOW + 50, eviction=eviction)
    for status in (job.status, evicted, evicted, transitions.admit(evicted, again, NOW + 40), resized):
        log.observe(job.model_copy(update={"status": status}))
    found = read(leader(two_queues(job), preemptions=log.newest_first()), "preemptions")["items"]
    assert [(one["reason"], one["resized"], one["at"][14:19]) for one in found] == [
        ("Reclaimed", True, "17:30"), ("Reclaimed", False, "16:40"),
    ]  # fmt: skip
    assert found[1]["message"] == "reclaimed for default/b"


def test_evictions_for_other_reasons_are_no_preemptions() -> None:
    log, job = PreemptionLog(), admitted("a")
    drained = transitions.evict(job.status, "Drained", "node n0 is drained", NOW)
    for status in (drained, finish(drained, "Failed", "Error", "", NOW)):
        log.observe(job.model_copy(update={"status": status}))
    assert log.newest_first() == ()


def test_the_log_of_preemptions_is_bounded() -> None:
    log, job = PreemptionLog(), admitted("a")
    for second in range(1100):
        evicted = transitions.evict(job.status, "Preempted", "", NOW + second)
        log.observe(job.model_copy(update={"status": evicted}))
    kept = log.newest_first()
    assert (len(kept), kept[0].at, kept[-1].at) == (1000, NOW + 1099, NOW + 100)


def test_a_node_has_the_topology_domains_of_its_flavor_in_the_order_of_the_levels() -> None:
    kind = flavor(levels={"block": "example.com/z-block", "rack": "example.com/a-rack", "host": "example.com/host"})
    labels = {"example.com/a-rack": "r1", "example.com/z-block": "b1", "other": "x"}
    hosts = tuple(replace(one, labels=labels) for one in nodes(1))
    (node,) = read(leader(observed_state(nodes=hosts, flavors=(kind,))), "nodes")["items"]
    assert list(node["topology"].items()) == [("block", "b1"), ("rack", "r1")]
