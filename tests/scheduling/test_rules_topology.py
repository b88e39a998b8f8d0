"""Which nodes: domains required and preferred, the tightest, taints, labels, flavors in order, nodes to avoid."""

from __future__ import annotations

import pytest
from tests.scheduling.builders import wait_of
from tests.scheduling.snapshots import (
    GPU,
    gang,
    gpus,
    inputs,
    nodes_of,
    on,
    queue,
    rack,
    role,
    run,
    started,
    waits_by_uid,
)

from muster.model import (
    FlavorInfo,
    Gang,
    MatchExpression,
    NodeInfo,
    NodeTaint,
    NodeToleration,
    QueueInfo,
    Quota,
    Resources,
    Topology,
)
from muster.scheduling import plan

PLENTY = [queue("q", guaranteed=1000)]


def place(nodes: list[NodeInfo], requested: Gang, **more: object) -> dict[str, int]:
    """Pods of a gang by node; empty when it does not start."""
    return nodes_of(started(plan(inputs(nodes, PLENTY, [requested], **more))).get(requested.uid, ()))  # type: ignore[arg-type]


def racks_of(nodes: dict[str, int]) -> set[str]:
    return {name.split("-")[0] for name in nodes}


def test_a_required_domain_is_never_left_even_if_the_cluster_has_capacity() -> None:
    nodes = rack("r1", 2) + rack("r2", 2)
    filled = [run(gang("x"), ["r1-0"]), run(gang("y"), ["r2-0"])]
    assert place(nodes, gang("g", pods=2, required="rack"), running=filled) == {}
    assert place(nodes, gang("g", pods=2), running=filled) == {"r1-1": 1, "r2-1": 1}


def test_a_preferred_domain_is_used_when_there_is_capacity() -> None:
    nodes = rack("r1", 1) + rack("r2", 3) + rack("r3", 1)
    assert racks_of(place(nodes, gang("g", pods=2, preferred="rack"))) == {"r2"}


def test_a_preferred_domain_without_capacity_does_not_delay_the_gang() -> None:
    nodes = rack("r1", 1) + rack("r2", 1)
    assert place(nodes, gang("g", pods=2, preferred="rack")) == {"r1-0": 1, "r2-0": 1}


def test_a_preferred_rack_within_a_required_block() -> None:
    nodes = rack("r1", 3, block="b1") + rack("r2", 1, block="b2") + rack("r3", 1, block="b2")
    wants = {"required": "block", "preferred": "rack"}
    assert racks_of(place(nodes, gang("g", pods=2, **wants))) == {"r1"}  # type: ignore[arg-type]
    filled = [run(gang("x"), ["r1-0"]), run(gang("y"), ["r1-1"])]
    assert racks_of(place(nodes, gang("g", pods=2, **wants), running=filled)) == {"r2", "r3"}  # type: ignore[arg-type]


def test_the_tightest_domain_that_nominations_the_gang_is_taken() -> None:
    nodes = rack("r1", 4) + rack("r2", 2) + rack("r3", 3)
    assert racks_of(place(nodes, gang("g", pods=2, required="rack"))) == {"r2"}


def test_the_tightest_node_that_nominations_the_pod_is_taken() -> None:
    filled = [run(gang("x", size=4), ["r1-1"]), run(gang("y", size=2), ["r1-2"])]
    assert place(rack("r1", 3), gang("g", size=4), running=filled) == {"r1-1": 1}


def test_a_gang_without_topology_still_uses_as_few_racks_as_possible() -> None:
    nodes = rack("r1", 1) + rack("r2", 4) + rack("r3", 2)
    assert racks_of(place(nodes, gang("g", pods=4))) == {"r2"}


def test_pods_of_one_gang_share_nodes_where_they_fit() -> None:
    assert place(rack("r1", 3), gang("g", pods=4, size=2)) == {"r1-0": 4}


def test_all_roles_without_their_own_topology_share_the_required_domain() -> None:
    roles = [role("trainer", 2), role("reader", 1, request=gpus(0, cpu=90))]
    nodes = rack("r1", 2) + rack("r2", 3)
    busy = [run(gang("x", roles=[role("trainer", 2, request=gpus(0, cpu=90))]), ["r1-0", "r1-1"])]
    assert racks_of(place(nodes, gang("g", roles=roles, required="rack"), running=busy)) == {"r2"}
    everywhere = place(rack("r1", 2) + rack("r2", 1), gang("g", roles=[role("trainer", 3)], required="rack"))
    assert everywhere == {}


def test_a_role_with_its_own_topology_lies_in_its_own_domain() -> None:
    roles = [role("left", 2, topology=Topology("rack")), role("right", 2, topology=Topology("rack"))]
    assert len(place(rack("r1", 2) + rack("r2", 2), gang("g", roles=roles))) == 4
    assert place(rack("r1", 2) + rack("r2", 2), gang("g", roles=[role("both", 4)], required="rack")) == {}


def test_nodes_without_the_label_of_a_level_belong_to_no_domain_of_it() -> None:
    bare = [NodeInfo(f"bare-{i}", rack("r", 1)[0].allocatable, flavor="h200", domains=("b1",)) for i in range(3)]
    requested = gang("g", pods=2, required="rack")
    assert wait_of(inputs(bare, PLENTY, [requested]), "g").reason == "LargerThanCluster"
    assert len(place(bare, gang("g", pods=2, required="block"))) == 2


def test_a_flavor_without_the_required_level_is_passed_over() -> None:
    flat = FlavorInfo("flat")
    queues = [QueueInfo("q", quotas=(Quota("flat", GPU, 80), Quota("h200", GPU, 80)))]
    nodes = [NodeInfo("flat-0", rack("r", 1)[0].allocatable, flavor="flat"), *rack("r1", 1)]
    flavors = (flat, FlavorInfo("h200", ("block", "rack")))
    requested = gang("g", required="rack", flavors=("flat", "h200"))
    assert nodes_of(started(plan(inputs(nodes, queues, [requested], flavors=flavors)))["g"]) == {"r1-0": 1}
    alone = wait_of(inputs(nodes, queues, [gang("g", required="rack", flavors=("flat",))], flavors=flavors), "g")
    assert alone.reason == "UnknownTopologyLevel"
    assert alone.message == ("needs the topology level rack, but flavor flat has no levels (queue q names flat, h200)")


# -- flavors


BOTH = [QueueInfo("q", quotas=(Quota("a100", GPU, 16), Quota("h200", GPU, 16)))]
NODES = rack("h", 2) + rack("a", 2, flavor="a100")


def flavor_of(requested: Gang, running: list[object] | None = None) -> str:
    result = plan(inputs(NODES, BOTH, [requested], running or []))  # type: ignore[arg-type]
    return started(result)["g"][0].flavor


@pytest.mark.parametrize("wish", [("h200", "a100"), ("a100", "h200"), ("a100",)])
def test_flavors_are_tried_in_the_order_of_the_gang(wish: tuple[str, ...]) -> None:
    assert flavor_of(gang("g", flavors=wish)) == wish[0]


def test_the_next_flavor_is_taken_when_the_first_has_no_capacity() -> None:
    full = run(gang("x", pods=2), ["h-0", "h-1"])
    assert flavor_of(gang("g", flavors=("h200", "a100")), [full]) == "a100"


def test_without_flavors_of_the_job_those_of_the_queue_are_tried_by_name() -> None:
    assert flavor_of(gang("g")) == "a100"


def test_a_roles_own_flavors_win_over_the_gangs() -> None:
    roles = [role("trainer", 1), role("old", 1, flavors=("a100",))]
    placed = started(plan(inputs(NODES, BOTH, [gang("g", roles=roles, flavors=("h200",))])))["g"]
    assert [(part.role, part.flavor) for part in placed] == [("trainer", "h200"), ("old", "a100")]


def test_a_role_never_lies_in_two_flavors() -> None:
    assert waits_by_uid(plan(inputs(NODES, BOTH, [gang("g", pods=3)])))["g"].reason == "LargerThanCluster"


def test_a_node_of_no_flavor_or_of_an_unknown_one_is_never_used() -> None:
    nodes = [*rack("r1", 1, flavor="mystery"), NodeInfo("plain", rack("r", 1)[0].allocatable)]
    assert wait_of(inputs(nodes, PLENTY, [gang("g")]), "g").reason == "LargerThanCluster"


# -- nodes that a pod accepts


def test_a_taint_keeps_a_pod_off_unless_it_tolerates_it() -> None:
    tainted = rack("r1", 1, taints=(NodeTaint("spot", "yes"),))
    assert place(tainted, gang("g")) == {}
    for toleration in (
        NodeToleration("spot", "Equal", "yes"),
        NodeToleration("spot", "Exists"),
        NodeToleration("spot", "Equal", "yes", "NoSchedule"),
        NodeToleration("", "Exists"),
    ):
        assert place(tainted, gang("g", roles=[role("trainer", 1, tolerations=(toleration,))])) == {"r1-0": 1}
    for toleration in (
        NodeToleration("spot", "Equal", "no"),
        NodeToleration("other", "Exists"),
        NodeToleration("spot", "Equal", "yes", "NoExecute"),
        NodeToleration("", "Equal", ""),
    ):
        assert place(tainted, gang("g", roles=[role("trainer", 1, tolerations=(toleration,))])) == {}


def test_a_prefer_no_schedule_taint_excludes_no_pod() -> None:
    assert place(rack("r1", 1, taints=(NodeTaint("spot", effect="PreferNoSchedule"),)), gang("g")) == {"r1-0": 1}


def test_tolerations_of_the_flavor_nomination_for_every_pod_in_it() -> None:
    tolerant = FlavorInfo("h200", ("block", "rack"), (NodeToleration("spot", "Exists"),))
    nodes = rack("r1", 1, taints=(NodeTaint("spot"),))
    assert started(plan(inputs(nodes, PLENTY, [gang("g")], flavors=(tolerant,))))


def test_every_line_of_a_node_selector_has_to_nomination() -> None:
    nodes = rack("r1", 1, labels={"disk": "nvme"}) + rack("r2", 1, labels={"disk": "nvme", "zone": "z1"})
    requested = role("trainer", 1, node_selector=(("disk", "nvme"), ("zone", "z1")))
    assert place(nodes, gang("g", roles=[requested])) == {"r2-0": 1}


def test_affinity_is_an_or_of_ands() -> None:
    nodes = rack("r1", 1, labels={"a": "1"}) + rack("r2", 1, labels={"b": "1", "c": "1"}) + rack("r3", 1)
    one = (MatchExpression("a", "In", ("2", "3")),)
    two = (MatchExpression("b", "Exists"), MatchExpression("c", "NotIn", ("2",)))
    assert place(nodes, gang("g", roles=[role("trainer", 1, affinity=(one, two))])) == {"r2-0": 1}
    assert place(nodes, gang("g", roles=[role("trainer", 2, affinity=(one, two))])) == {}


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        (MatchExpression("gen", "In", ("5", "7")), True),
        (MatchExpression("gen", "NotIn", ("7",)), False),
        (MatchExpression("missing", "NotIn", ("7",)), True),
        (MatchExpression("gen", "Exists"), True),
        (MatchExpression("gen", "DoesNotExist"), False),
        (MatchExpression("gen", "Gt", ("6",)), True),
        (MatchExpression("gen", "Gt", ("7",)), False),
        (MatchExpression("gen", "Lt", ("8",)), True),
        (MatchExpression("missing", "Lt", ("8",)), False),
        (MatchExpression("metadata.name", "In", ("r1-0",)), True),
    ],
)
def test_affinity_has_the_operators_of_kubernetes(line: MatchExpression, fits: bool) -> None:
    requested = gang("g", roles=[role("trainer", 1, affinity=((line,),))])
    assert bool(place(rack("r1", 1, labels={"gen": "7"}), requested)) is fits


def test_nodes_that_this_job_avoids_are_left_to_others() -> None:
    waiting = [gang("burnt", excluded_nodes=frozenset({"r1-0"})), gang("other", at=1)]
    result = started(plan(inputs(rack("r1", 2), PLENTY, waiting)))
    assert {uid: set(nodes_of(placement)) for uid, placement in result.items()} == {
        "burnt": {"r1-1"},
        "other": {"r1-0"},
    }


def test_nodes_excluded_for_all_are_not_used_and_make_no_job_infeasible() -> None:
    wait = wait_of(inputs(rack("r1", 1), PLENTY, [gang("g")], excluded_nodes=frozenset({"r1-0"})), "g")
    assert wait.reason == "InsufficientResources"


def test_a_cordoned_node_accepts_no_pod_and_keeps_its_pods() -> None:
    nodes = rack("r1", 1, schedulable=False)
    half = run(gang("there", size=4), ["r1-0"])
    result = plan(inputs(nodes, PLENTY, [gang("g", size=4)], [half]))
    assert (started(result), waits_by_uid(result)["g"].reason, len(result.decisions)) == (
        {},
        "InsufficientResources",
        1,
    )


def test_what_pods_of_others_use_is_not_free() -> None:
    nodes = rack("r1", 1, unmanaged_usage=Resources.of({GPU: 4, "pods": 3}))
    assert place(nodes, gang("g", size=4)) == {"r1-0": 1}
    assert place(nodes, gang("g", size=5)) == {}


def test_pod_slots_are_capacity_as_well() -> None:
    narrow = [NodeInfo("n", Resources.of({GPU: 8, "pods": 2}), flavor="h200", domains=("b", "b/r"))]
    assert place(narrow, gang("g", pods=2, size=1)) == {"n": 2}
    assert place(narrow, gang("g", pods=3, size=1)) == {}


def test_running_gangs_never_move() -> None:
    scattered = [run(gang("x", size=4), ["r1-0"]), run(gang("y", size=4), ["r1-1"])]
    result = plan(inputs(rack("r1", 2), PLENTY, [gang("g")], scattered))
    assert [type(d).__name__ for d in result.decisions] == ["Wait"]
    assert on(["r1-0"]) == scattered[0].placement
