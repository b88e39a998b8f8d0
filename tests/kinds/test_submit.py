"""The checks of a job at submit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.api.objects import COMPANY, flavor, gang, job, queue, refused

from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.validation import check_size
from muster.kinds.trainingjob.submit import KnownObjects
from muster.kinds.trainingjob.submit import check_submit as check


def check_submit(wanted: TrainingJob, queues: Iterable[Queue], flavors: Iterable[Flavor] = (), **known: Any) -> None:
    by_name = {one.metadata.name: one for one in queues}
    check(wanted, KnownObjects(by_name, {one.metadata.name: one for one in flavors}, **known), 0.0)


def test_a_job_that_could_start_passes() -> None:
    check_submit(
        job(queue="research", topology={"required": "rack"}), COMPANY, [flavor("h200", "rack")], namespace_labels={}
    )


def test_an_unknown_queue_is_refused_with_the_nearest_one() -> None:
    message = refused("QueueNotFound", check_submit, job(queue="reserch"), COMPANY)
    existing = "existing queues: company, research; did you mean 'research'?"
    assert message == f"spec.queue: queue reserch does not exist; {existing}"


def test_an_unknown_queue_without_a_near_one_lists_what_there_is() -> None:
    assert refused("QueueNotFound", check_submit, job(queue="zzz"), COMPANY).endswith(
        "; existing queues: company, research"
    )
    assert refused("QueueNotFound", check_submit, job(queue="zzz"), []).endswith("; existing queues: none")


def test_an_inner_queue_is_refused_with_its_children() -> None:
    message = refused("QueueNotLeaf", check_submit, job(queue="company"), COMPANY)
    assert message.endswith("submit to one of them: research")


def test_a_queue_in_a_cycle_is_refused_with_the_path() -> None:
    message = refused("QueueInactive", check_submit, job(queue="a"), [queue("a", "b"), queue("b", "a")])
    assert "a → b → a" in message


def test_a_namespace_without_the_labels_is_refused_with_both() -> None:
    queues = [queue("a", namespaceSelector={"matchLabels": {"org": "research"}})]
    message = refused("QueueNotAllowed", check_submit, job(queue="a"), queues, namespace_labels={"org": "sales"})
    assert message == (
        "spec.queue: queue a does not admit jobs of namespace default (its namespaceSelector); it requires "
        "org=research; the namespace's labels are org=sales"
    )
    assert "{} allows all" in refused(
        "QueueNotAllowed", check_submit, job(queue="b"), [queue("b")], namespace_labels={}
    )


def test_a_priority_above_the_queues_maximum_is_refused() -> None:
    message = refused("PriorityTooHigh", check_submit, job(queue="a", priority=11), [queue("a", maxPriority=10)])
    assert message == "spec.priority: must be at most maxPriority (10) of queue 'a'; got 11"


def test_a_priority_class_that_does_not_exist_is_refused_where_the_classes_are_known() -> None:
    wanted, queues = job(queue="a", priorityClassName="hihg"), [queue("a", maxPriority=10)]
    message = refused("PriorityClassNotFound", check_submit, wanted, queues, priority_classes={"high": 11, "low": 1})
    assert message == "spec.priorityClassName: PriorityClass 'hihg' does not exist; did you mean 'high'?"
    check_submit(wanted, queues)
    check_submit(job(queue="a", priorityClassName="low"), queues, priority_classes={"high": 11, "low": 1})


def test_the_value_of_a_priority_class_counts_against_the_queues_maximum() -> None:
    wanted = job(queue="a", priorityClassName="high")
    message = refused(
        "PriorityTooHigh", check_submit, wanted, [queue("a", maxPriority=10)], priority_classes={"high": 11}
    )
    assert message.startswith("spec.priorityClassName: must be at most maxPriority (10) of queue 'a'; got 11")


def test_a_priority_above_the_maximum_of_a_queue_above_is_refused_too() -> None:
    tree = [queue("top", maxPriority=5), queue("a", "top", maxPriority=10), queue("b", "top", maxPriority=3)]
    message = refused("PriorityTooHigh", check_submit, job(queue="a", priority=6), tree)
    assert message == "spec.priority: must be at most maxPriority (5) of queue 'top', above queue 'a'; got 6"
    assert "maxPriority (3) of queue 'b'" in refused("PriorityTooHigh", check_submit, job(queue="b", priority=4), tree)
    check_submit(job(queue="a", priority=5), tree)


def test_a_flavor_that_does_not_exist_is_refused_with_the_nearest_one() -> None:
    message = refused("FlavorNotFound", check_submit, job(queue="research", flavors=["h20"]), COMPANY, [flavor()])
    assert message == "spec.flavors: flavor 'h20' does not exist; did you mean 'h200'?"


def test_all_flavors_that_do_not_exist_are_in_one_refusal() -> None:
    wanted = job(queue="research", flavors=["h200", "h20", "b300"])
    message = refused("FlavorNotFound", check_submit, wanted, COMPANY, [flavor()])
    assert message == (
        "spec.flavors: flavor 'h20' does not exist; did you mean 'h200'?; "
        "also: spec.flavors: flavor 'b300' does not exist; there is h200"
    )


def test_a_flavor_without_quota_on_the_path_is_refused() -> None:
    flavors = [flavor(), flavor("a100")]
    message = refused("FlavorNotAllowed", check_submit, job(queue="research", flavors=["a100"]), COMPANY, flavors)
    assert message.startswith("spec.flavors: queue 'research' has no quota for 'a100'")


def test_an_unknown_topology_level_is_refused_with_the_nearest_one_even_of_a_role() -> None:
    message = refused(
        "UnknownTopologyLevel",
        check_submit,
        job(queue="research", topology={"required": "racks"}),
        COMPANY,
        [flavor("h200", "block", "rack")],
    )
    assert message == "spec.topology.required: h200 has no level 'racks'; did you mean 'rack'?"
    role = {**job().spec.roles[0].model_dump(by_alias=True), "topology": {"preferred": "row"}}
    message = refused("UnknownTopologyLevel", check_submit, job(queue="research", roles=[role]), COMPANY, [flavor()])
    assert message.startswith("spec.roles[0].topology.preferred: h200 has no level 'row'")


@pytest.mark.parametrize("flavors", [[], [flavor("h200", "block")]])
def test_a_topology_for_a_queue_that_names_no_flavor_is_refused_for_the_flavor(flavors: list[Flavor]) -> None:
    check_submit(job(queue="bare", topology={"required": "block"}), [queue("bare", namespaceSelector={})], flavors)
    refused("FlavorNotAllowed", check_size, gang(1, queue_name="bare", required="block"), [queue("bare")])


def test_a_topology_on_a_flavor_that_was_deleted_is_not_refused_for_its_level() -> None:
    check_submit(job(queue="research", topology={"required": "block"}), COMPANY, [flavor("a100", "block")])
