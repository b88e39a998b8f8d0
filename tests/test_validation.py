"""What objects show wrong together, told before it could only wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from muster import model
from muster.api.spec import Flavor, Queue, TrainingJob
from muster.api.validation import (
    apply_warnings,
    check_apply,
    check_dependencies_valid,
    check_size,
    check_submit,
    namespace_allowed,
    queue_readiness,
)
from muster.errors import Refused
from muster.model import NodeInfo, Resources


def queue(name: str, parent: str | None = None, **spec: Any) -> Queue:
    return Queue.model_validate({"metadata": {"name": name}, "spec": {"parent": parent, **spec}})


def gpus(flavor: str = "h200", **amounts: int) -> list[dict[str, Any]]:
    return [{"flavor": flavor, **{word: {"nvidia.com/gpu": amount} for word, amount in amounts.items()}}]


def flavor(name: str = "h200", *levels: str) -> Flavor:
    topology = [{"name": level, "nodeLabel": f"example.com/{level}"} for level in levels]
    return Flavor.model_validate({"metadata": {"name": name}, "spec": {"topology": topology}})


def job(**spec: Any) -> TrainingJob:
    role = {"name": "trainer", "replicas": 2, "template": {"spec": {"containers": [{"command": ["x"]}]}}}
    return TrainingJob.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [role], **spec}})


def refused(reason: str, act: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(Refused) as caught:
        act(*arguments, **named)
    assert caught.value.reason == reason
    return str(caught.value)


COMPANY = [queue("company", namespaceSelector={}, resources=gpus(guaranteed=32)), queue("research", "company")]

# ---- verdicts


def test_a_healthy_tree_is_active() -> None:
    assert {name: verdict.active for name, verdict in queue_readiness(COMPANY).items()} == {
        "company": True,
        "research": True,
    }


def test_a_cycle_makes_its_queues_and_what_hangs_below_inactive_and_names_the_path() -> None:
    verdicts = queue_readiness([queue("b", "c"), queue("a", "b"), queue("c", "a"), queue("leaf", "b"), queue("ok")])
    assert {name: verdict.reason for name, verdict in verdicts.items()} == {
        "a": "Cycle",
        "b": "Cycle",
        "c": "Cycle",
        "leaf": "ParentInactive",
        "ok": "NoResources",
    }
    assert verdicts["c"].message.startswith("in a cycle: a → b → c → a ")
    assert "a → b → c → a" in verdicts["leaf"].message


def test_a_queue_that_is_its_own_parent_is_a_cycle() -> None:
    assert queue_readiness([queue("a", "a")])["a"].message.startswith("in a cycle: a → a ")


def test_a_missing_parent_is_named_and_makes_the_queues_below_inactive() -> None:
    verdicts = queue_readiness([queue("leaf", "team"), queue("team", "company")])
    assert (verdicts["team"].reason, verdicts["leaf"].reason) == ("ParentNotFound", "ParentInactive")
    assert verdicts["team"].message == "its parent 'company' does not exist; create it or remove spec.parent"
    assert "parent 'company' does not exist" in verdicts["leaf"].message


def test_a_queue_that_cannot_be_read_admits_nothing_nor_does_any_below_it() -> None:
    tree = [*COMPANY, queue("other")]
    verdicts = queue_readiness(tree, {"company": "spec.weight: must be greater than 0; got -1", "gone": "whatever"})
    assert {name: verdict.reason for name, verdict in verdicts.items()} == {
        "company": "InvalidSpec",
        "research": "ParentInactive",
        "other": "NoResources",
    }
    told = "it cannot be read: spec.weight: must be greater than 0; got -1"
    assert verdicts["company"].message == told
    assert verdicts["research"].message == f"its parent 'company' is inactive: {told}"


def test_a_queue_that_is_being_deleted_admits_nothing() -> None:
    leaving = Queue.model_validate({"metadata": {"name": "a", "deletionTimestamp": 5.0}})
    assert queue_readiness([leaving])["a"].reason == "Deleting"


def test_children_guaranteed_more_than_their_parent_overcommit_it_and_nothing_else() -> None:
    verdicts = queue_readiness(
        [
            queue("root", resources=gpus(guaranteed=64)),
            queue("top", "root", resources=gpus(guaranteed=16)),
            queue("a", "top", resources=gpus(guaranteed=16)),
            queue("b", "top", resources=gpus(guaranteed=8)),
        ]
    )
    assert verdicts["top"].active
    assert verdicts["top"].overcommitted_message == (
        "its children are guaranteed 24 nvidia.com/gpu of h200 together, it guarantees 16; "
        "raise it to 24 or lower theirs (a, b)"
    )
    assert [verdicts[name].overcommitted_message for name in ("root", "a", "b")] == [None] * 3


def test_a_parent_that_sets_no_guarantee_is_not_overcommitted_but_its_parent_can_be() -> None:
    verdicts = queue_readiness(
        [
            queue("root", resources=gpus(guaranteed=8)),
            queue("middle", "root"),
            queue("a", "middle", resources=gpus(guaranteed=9)),
        ]
    )
    assert verdicts["middle"].overcommitted_message is None
    assert "guaranteed 9 nvidia.com/gpu" in (verdicts["root"].overcommitted_message or "")


def test_children_guaranteed_more_than_their_parents_limit_overcommit_it() -> None:
    verdicts = queue_readiness([queue("top", resources=gpus(limit=8)), queue("a", "top", resources=gpus(guaranteed=9))])
    assert "it is limited to 8" in (verdicts["top"].overcommitted_message or "")


# ---- namespaces


def test_without_a_selector_on_the_path_no_namespace_may_use_a_queue() -> None:
    assert not namespace_allowed("a", [queue("a")], {"org": "x"})


def test_an_empty_selector_allows_all_and_is_inherited() -> None:
    assert namespace_allowed("research", COMPANY, {})


def test_the_nearest_selector_counts_alone() -> None:
    queues = [queue("top", namespaceSelector={}), queue("a", "top", namespaceSelector={"matchLabels": {"org": "r"}})]
    assert not namespace_allowed("a", queues, {"org": "x"})
    assert namespace_allowed("a", queues, {"org": "r"})


@pytest.mark.parametrize(
    ("line", "labels", "expected"),
    [
        ({"key": "org", "operator": "In", "values": ["a", "b"]}, {"org": "b"}, True),
        ({"key": "org", "operator": "In", "values": ["a"]}, {}, False),
        ({"key": "org", "operator": "NotIn", "values": ["a"]}, {"org": "a"}, False),
        ({"key": "org", "operator": "NotIn", "values": ["a"]}, {}, True),
        ({"key": "org", "operator": "Exists"}, {"org": ""}, True),
        ({"key": "org", "operator": "Exists"}, {}, False),
        ({"key": "org", "operator": "DoesNotExist"}, {"org": "a"}, False),
        ({"key": "org", "operator": "DoesNotExist"}, {}, True),
    ],
)
def test_match_expressions_follow_kubernetes(line: dict[str, Any], labels: dict[str, str], expected: bool) -> None:
    queues = [queue("a", namespaceSelector={"matchExpressions": [line]})]
    assert namespace_allowed("a", queues, labels) is expected


# ---- submit


def test_a_job_that_could_start_passes() -> None:
    check_submit(job(queue="research", topology={"required": "rack"}), COMPANY, [flavor("h200", "rack")], {})


def test_an_unknown_queue_is_refused_with_the_nearest_one() -> None:
    told = refused("QueueNotFound", check_submit, job(queue="reserch"), COMPANY)
    assert told == "spec.queue: queue 'reserch' does not exist; did you mean 'research'?"


def test_an_unknown_queue_without_a_near_one_lists_what_there_is() -> None:
    assert refused("QueueNotFound", check_submit, job(queue="zzz"), COMPANY).endswith("; there is research")
    assert refused("QueueNotFound", check_submit, job(queue="zzz"), []).endswith("; there is no queue yet")


def test_an_inner_queue_is_refused_with_its_children() -> None:
    told = refused("QueueNotLeaf", check_submit, job(queue="company"), COMPANY)
    assert told.endswith("submit to one of them: research")


def test_a_queue_in_a_cycle_is_refused_with_the_path() -> None:
    told = refused("QueueInactive", check_submit, job(queue="a"), [queue("a", "b"), queue("b", "a")])
    assert "a → b → a" in told


def test_a_namespace_without_the_labels_is_refused_with_both() -> None:
    queues = [queue("a", namespaceSelector={"matchLabels": {"org": "research"}})]
    told = refused("QueueNotAllowed", check_submit, job(queue="a"), queues, (), {"org": "sales"})
    assert told == (
        "spec.queue: namespace 'default' may not use queue 'a': its namespaceSelector requires org=research; "
        "the namespace's labels are org=sales"
    )
    assert "{} allows all" in refused("QueueNotAllowed", check_submit, job(queue="b"), [queue("b")], (), {})


def test_a_priority_above_the_queues_maximum_is_refused() -> None:
    told = refused("PriorityTooHigh", check_submit, job(queue="a", priority=11), [queue("a", maxPriority=10)])
    assert told == "spec.priority: must be at most maxPriority (10) of queue 'a'; got 11"


def test_a_priority_class_that_does_not_exist_is_refused_where_the_classes_are_known() -> None:
    wanted, queues = job(queue="a", priorityClassName="hihg"), [queue("a", maxPriority=10)]
    told = refused("PriorityClassNotFound", check_submit, wanted, queues, (), None, {"high": 11, "low": 1})
    assert told == "spec.priorityClassName: PriorityClass 'hihg' does not exist; did you mean 'high'?"
    check_submit(wanted, queues)
    check_submit(job(queue="a", priorityClassName="low"), queues, (), None, {"high": 11, "low": 1})


def test_the_value_of_a_priority_class_counts_against_the_queues_maximum() -> None:
    wanted = job(queue="a", priorityClassName="high")
    told = refused("PriorityTooHigh", check_submit, wanted, [queue("a", maxPriority=10)], (), None, {"high": 11})
    assert told.startswith("spec.priorityClassName: must be at most maxPriority (10) of queue 'a'; got 11")


def test_a_priority_above_the_maximum_of_a_queue_above_is_refused_too() -> None:
    tree = [queue("top", maxPriority=5), queue("a", "top", maxPriority=10), queue("b", "top", maxPriority=3)]
    told = refused("PriorityTooHigh", check_submit, job(queue="a", priority=6), tree)
    assert told == "spec.priority: must be at most maxPriority (5) of queue 'top', above queue 'a'; got 6"
    assert "maxPriority (3) of queue 'b'" in refused("PriorityTooHigh", check_submit, job(queue="b", priority=4), tree)
    check_submit(job(queue="a", priority=5), tree)


def test_a_queue_or_flavors_that_cannot_be_read_are_refused_with_the_reason() -> None:
    tree = {one.metadata.name: one for one in COMPANY}
    check_dependencies_valid(job(queue="research"), tree, {"other": "odd"}, {"a100": "odd"})
    check_dependencies_valid(job(queue="research", flavors=["a100", "h200"]), tree, {}, {"a100": "odd"})
    told = refused(
        "QueueInactive", check_dependencies_valid, job(queue="research"), tree, {"company": "spec.x: odd"}, {}
    )
    assert told == "spec.queue: queue company, above queue research, cannot be read: spec.x: odd"
    told = refused("UnknownFlavor", check_dependencies_valid, job(queue="research"), tree, {}, {"h200": "spec.x: odd"})
    assert told == "spec.flavors: flavor h200 cannot be read: spec.x: odd"


def test_an_unknown_flavor_is_refused_with_the_nearest_one() -> None:
    told = refused("UnknownFlavor", check_submit, job(queue="research", flavors=["h20"]), COMPANY, [flavor()])
    assert told == "spec.flavors: flavor 'h20' does not exist; did you mean 'h200'?"


def test_a_flavor_without_quota_on_the_path_is_refused() -> None:
    flavors = [flavor(), flavor("a100")]
    told = refused("UnknownFlavor", check_submit, job(queue="research", flavors=["a100"]), COMPANY, flavors)
    assert told.startswith("spec.flavors: queue 'research' has no quota for 'a100'")


def test_an_unknown_topology_level_is_refused_with_the_nearest_one_even_of_a_role() -> None:
    told = refused(
        "UnknownTopologyLevel",
        check_submit,
        job(queue="research", topology={"required": "racks"}),
        COMPANY,
        [flavor("h200", "block", "rack")],
    )
    assert told == "spec.topology.required: h200 has no level 'racks'; did you mean 'rack'?"
    role = {**job().spec.roles[0].model_dump(by_alias=True), "topology": {"preferred": "row"}}
    told = refused("UnknownTopologyLevel", check_submit, job(queue="research", roles=[role]), COMPANY, [flavor()])
    assert told.startswith("spec.roles[0].topology.preferred: h200 has no level 'row'")


@pytest.mark.parametrize("flavors", [[], [flavor("h200", "block")]])
def test_a_topology_for_a_queue_that_names_no_flavor_is_refused_for_the_flavor(flavors: list[Flavor]) -> None:
    check_submit(job(queue="bare", topology={"required": "block"}), [queue("bare", namespaceSelector={})], flavors)
    refused("UnknownFlavor", check_size, gang(1, queue_name="bare", required="block"), [queue("bare")])


def test_a_topology_on_a_flavor_that_was_deleted_is_not_refused_for_its_level() -> None:
    check_submit(job(queue="research", topology={"required": "block"}), COMPANY, [flavor("a100", "block")])


# ---- size


def gang(pods: int, gpus_each: int = 8, queue_name: str = "research", required: str | None = None) -> model.Gang:
    request = model.Resources.of({"nvidia.com/gpu": gpus_each, "pods": 1})
    role = model.Role("trainer", pods, pods, request)
    topology = model.Topology(required) if required else None
    return model.Gang("u", "default/j", queue_name, 0, 0.0, (role,), topology=topology)


def node(name: str, *domains: str, gpu: int = 8) -> model.NodeInfo:
    return model.NodeInfo(
        name, model.Resources.of({"nvidia.com/gpu": gpu, "pods": 110}), flavor="h200", domains=domains
    )


NODES = [node("n1", "r1"), node("n2", "r1"), node("n3", "r2"), node("n4", "r2", gpu=4)]


def test_a_job_larger_than_the_cluster_is_refused_with_the_largest_that_fits() -> None:
    check_size(gang(3), COMPANY, (), NODES)
    told = refused("LargerThanCluster", check_size, gang(4), COMPANY, (), NODES)
    assert told == (
        "role trainer needs 4 pods of 8 nvidia.com/gpu each on h200; "
        "in the empty cluster the largest that fits is 3 pods"
    )
    told = refused("LargerThanCluster", check_size, gang(1, 16), COMPANY, (), NODES)
    assert told.endswith("not even one pod fits; the largest node, n1, has 8 nvidia.com/gpu")
    mixed = [node("n5"), model.NodeInfo("n6", model.Resources.of({"cpu": 4000, "pods": 110}), flavor="h200")]
    asked = model.Resources.of({"cpu": 9000, "nvidia.com/gpu": 16, "pods": 1})
    both = dataclasses.replace(gang(1), roles=(model.Role("trainer", 1, 1, asked),))
    told = refused("LargerThanCluster", check_size, both, COMPANY, (), mixed)
    assert told.endswith("the largest node, n6, has 4 cpu; the largest node, n5, has 8 nvidia.com/gpu")


def test_a_job_larger_than_its_quota_is_reported_in_the_same_refusal_that_the_cluster_has_room_for_even_fewer() -> None:
    few = [node("n1"), node("n2")]
    told = refused("LargerThanQuota", check_size, gang(5), COMPANY, (), few)
    assert "the largest that fits is 4 pods" in told
    assert told.endswith("in the empty cluster the largest that fits is 2 pods")
    plenty = [node(f"n{number}") for number in range(4)]
    assert "empty cluster" not in refused("LargerThanQuota", check_size, gang(5), COMPANY, (), plenty)


def test_roles_that_are_too_large_are_all_told_at_once() -> None:
    asked = model.Resources.of({"nvidia.com/gpu": 16, "pods": 1})
    both = tuple(model.Role(name, 1, 1, asked) for name in ("actor", "learner"))
    told = refused("LargerThanCluster", check_size, dataclasses.replace(gang(1), roles=both), COMPANY, (), NODES)
    assert "role actor" in told
    assert "role learner" in told


def test_a_queue_that_names_no_flavor_has_no_node_for_a_job() -> None:
    told = refused("UnknownFlavor", check_size, gang(1), [queue("research", namespaceSelector={})], (), NODES)
    assert told.startswith("queue research and those above it name no flavor")


def test_a_job_larger_than_every_required_domain_is_refused() -> None:
    levels = [model.FlavorInfo("h200", ("rack",))]
    check_size(gang(2, required="rack"), COMPANY, levels, NODES)
    told = refused("LargerThanCluster", check_size, gang(3, required="rack"), COMPANY, levels, NODES)
    assert told.endswith("in one rack of the empty cluster the largest that fits is 2 pods")


def test_a_job_larger_than_all_that_its_queue_can_get_is_refused() -> None:
    check_size(gang(4), COMPANY)
    told = refused("LargerThanQuota", check_size, gang(5), COMPANY)
    assert told == (
        "role trainer needs 40 nvidia.com/gpu of h200 (5 pods); "
        "queue research can never have more than 32: the largest that fits is 4 pods"
    )


@pytest.mark.parametrize(
    ("a", "b", "most"),
    [
        ({"guaranteed": 8}, {"guaranteed": 24}, 32),  # all of b's can be borrowed
        ({"guaranteed": 8, "limit": 16}, {"guaranteed": 24}, 16),
        ({"guaranteed": 8}, {"guaranteed": 24, "lend": 8}, 16),  # b keeps 16
        ({"guaranteed": 8, "lend": 0}, {"guaranteed": 16, "lend": 0}, 16),  # 8 of its own, 8 that lie in the parent
    ],
)
def test_the_most_a_queue_can_get_follows_limit_lend_and_keep(a: dict[str, int], b: dict[str, int], most: int) -> None:
    top = queue("top", resources=gpus(guaranteed=32))
    queues = [top, queue("a", "top", resources=gpus("h200", **a)), queue("b", "top", resources=gpus("h200", **b))]
    check_size(gang(most, 1, "a"), queues)
    assert f"more than {most}:" in refused("LargerThanQuota", check_size, gang(most + 1, 1, "a"), queues)


def test_the_limit_of_a_queue_above_binds_even_where_the_queue_keeps_a_guarantee_for_itself() -> None:
    kept = queue("a", "team", resources=gpus(guaranteed=10, lend=0))
    queues = [
        queue("top", resources=gpus(guaranteed=100)),
        queue("team", "top", resources=gpus(guaranteed=10, limit=10)),
        kept,
    ]
    check_size(gang(10, 1, "a"), queues)
    assert "more than 10:" in refused("LargerThanQuota", check_size, gang(11, 1, "a"), queues)


def test_a_resource_that_no_queue_on_the_path_names_is_not_limited() -> None:
    check_size(gang(10**6), [queue("research", resources=[{"flavor": "h200", "guaranteed": {"cpu": 1}}])])


def test_what_nobody_guarantees_is_refused_with_that_reason() -> None:
    queues = [queue("top"), queue("a", "top", resources=gpus(limit=8))]
    assert refused("LargerThanQuota", check_size, gang(1, 1, "a"), queues) == (
        "role trainer needs 1 nvidia.com/gpu of h200 (1 pod); queue a can never have more than 0, since neither it nor"
        " a queue above it guarantees any: not even one pod fits"
    )


# ---- apply


def test_a_sound_tree_is_applied_in_any_order() -> None:
    check_apply([*reversed(COMPANY), flavor()], [])
    check_apply([queue("research", "company", weight=2)], [*COMPANY, flavor()])


def test_an_apply_that_closes_a_cycle_is_refused_with_its_path() -> None:
    told = refused("QueueCycle", check_apply, [queue("company", "research")], COMPANY)
    assert told.startswith("queue 'company': spec.parent: in a cycle: company → research → company")


def test_an_apply_under_a_missing_parent_is_refused_with_the_nearest_queue() -> None:
    told = refused("ParentNotFound", check_apply, [queue("team", "compny")], COMPANY)
    assert told.endswith("did you mean 'company'?")


def test_an_apply_that_overcommits_a_parent_is_refused_from_either_end() -> None:
    small = [queue("top", resources=gpus(guaranteed=8)), queue("a", "top", resources=gpus(guaranteed=8))]
    more = queue("b", "top", resources=gpus(guaranteed=1))
    assert "guaranteed 9" in refused("Overcommitted", check_apply, [more], small)
    less = queue("top", resources=gpus(guaranteed=7))
    assert "guaranteed 8" in refused("Overcommitted", check_apply, [less], small)


def test_what_was_wrong_before_stops_nobody_elsewhere() -> None:
    check_apply([queue("new")], [queue("a", "b"), queue("b", "a"), queue("lost", "nowhere")])


def test_an_apply_that_mends_a_cycle_passes() -> None:
    check_apply([queue("a")], [queue("a", "b"), queue("b", "a")])


def test_a_quota_of_a_flavor_that_does_not_exist_is_refused() -> None:
    told = refused("UnknownFlavor", check_apply, [queue("x", resources=gpus("h20", guaranteed=1))], [flavor()])
    assert told == "queue 'x': spec.resources[0].flavor: flavor 'h20' does not exist; did you mean 'h200'?"


# ---- notices of an apply


def shared(name: str, parent: str | None = None, **spec: Any) -> Queue:
    """A queue that all namespaces may use."""
    return queue(name, parent, namespaceSelector={}, **spec)


def test_a_limit_of_what_nobody_guarantees_is_noticed() -> None:
    default = shared("default", resources=[{"flavor": "h200", "guaranteed": {"pods": 110}}])
    below = [shared("other", "default")]
    told = apply_warnings([shared("small", "default", resources=gpus(limit=8))], [default, *below])
    (notice,) = told.pop("small")
    assert told == {}
    assert notice == (
        "spec.resources[0].limit: nvidia.com/gpu of h200: neither this queue nor one above it guarantees any, so it"
        " can use 0; set guaranteed here, or guaranteed or limit of queue 'default'"
    )


def test_a_limit_that_a_root_can_never_reach_is_noticed() -> None:
    told = apply_warnings([shared("top", resources=gpus(guaranteed=8, limit=16))], [])
    of = "spec.resources[0].limit: nvidia.com/gpu of h200"
    assert told == {"top": [f"{of}: 16 is never reached: a root cannot borrow, and 8 is guaranteed"]}


def test_the_first_queue_below_one_that_takes_jobs_is_noticed_once() -> None:
    default = shared("default", resources=gpus(guaranteed=8))
    told = apply_warnings([shared("a", "default"), shared("b", "default")], [default])
    assert told == {"a": ["jobs can no longer be submitted to 'default': only queues without children take jobs"]}
    assert apply_warnings([shared("c", "default")], [default, shared("a", "default")]) == {}


def test_a_queue_whose_path_names_no_flavor_is_noticed_at_apply_and_in_its_condition() -> None:
    told = apply_warnings([shared("a")], [])["a"]
    assert told == [
        "spec.resources: neither this queue nor one above it names a flavor, so its jobs cannot use any node"
    ]
    verdicts = queue_readiness(
        [shared("a"), shared("b", resources=gpus(limit=1)), shared("c", "b"), shared("top"), shared("d", "top")]
    )
    assert {name: (one.active, one.reason) for name, one in verdicts.items()} == {
        "a": (True, "NoResources"),
        "b": (True, "Ready"),
        "c": (True, "Ready"),
        "top": (True, "Ready"),
        "d": (True, "NoResources"),
    }


def test_a_guarantee_of_more_than_all_nodes_have_is_noticed() -> None:
    node = NodeInfo("n", Resources.of({"nvidia.com/gpu": 8}), flavor="h200")
    big, small = shared("big", resources=gpus(guaranteed=17)), shared("small", resources=gpus(guaranteed=16))
    told = apply_warnings(
        [big, small],
        [],
        [node, dataclasses.replace(node, name="m"), dataclasses.replace(node, name="x", flavor="a100")],
    )
    assert told == {
        "big": ["spec.resources[0].guaranteed: nvidia.com/gpu of h200: 17 is more than the 16 that all its nodes have"]
    }
    assert apply_warnings([big], [], None) == {}
    assert apply_warnings([shared("most", resources=gpus(limit=99))], [], [node]) == {}


def test_a_quota_that_can_be_used_is_not_noticed() -> None:
    company = [shared("top", resources=gpus(guaranteed=8, limit=8)), shared("none", "top", resources=gpus(limit=0))]
    assert apply_warnings([*company, shared("small", "top", resources=gpus(limit=1))], []) == {}
    assert apply_warnings([shared("a", "new"), shared("new", resources=gpus(guaranteed=8))], []) == {}
    alone = shared("alone", resources=gpus(limit=8))
    assert apply_warnings([alone, shared("below", "alone", resources=gpus(limit=4))], []) == {}


def test_a_queue_that_no_namespace_may_use_is_noticed_and_not_the_one_above_it() -> None:
    top, below = queue("top", resources=gpus(guaranteed=8)), queue("below", "top")
    told = apply_warnings([top, below], [])
    assert set(told) == {"below"}
    assert told["below"][0].startswith("spec.namespaceSelector: ")
    assert set(apply_warnings([top], [])) == {"top"}
    assert apply_warnings([below], [shared("top", resources=gpus(guaranteed=8)), queue("other", "top")]) == {}
    assert apply_warnings([top], [shared("below", "top")]) == {}


@pytest.mark.parametrize("top", [gpus(limit=8), gpus(guaranteed=8, limit=8), gpus(guaranteed=8)])
@pytest.mark.parametrize("between", [[], [shared("middle", "top")]])
def test_a_limit_above_what_the_queues_above_it_leave_is_noticed(
    top: list[dict[str, Any]], between: list[Queue]
) -> None:
    parent = between[-1].metadata.name if between else "top"
    above = [shared("top", resources=top), *between]
    (notice,) = apply_warnings([shared("a", parent, resources=gpus(limit=16))], [*above, shared("b", parent)])["a"]
    assert notice.startswith("spec.resources[0].limit: nvidia.com/gpu of h200: 16 is never reached")
    assert "8" in notice.split("never reached")[1]
    assert apply_warnings([shared("a", parent, resources=gpus(limit=8))], [*above, shared("b", parent)]) == {}


def test_a_root_with_a_limit_alone_takes_jobs_up_to_it() -> None:
    queues = [queue("a", resources=gpus(limit=8))]
    check_size(gang(8, 1, "a"), queues)
    assert "queue a can never have more than 8:" in refused("LargerThanQuota", check_size, gang(9, 1, "a"), queues)
