"""A placement is fitted again before its first pod; if it no longer fits, it is un-admitted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.worlds import flavor, job, nodes, queue

from muster import spec
from muster.cluster import CreatePod, NodeView, World, WriteStatus
from muster.engine import Engine, Round
from muster.engine.refit import misfits
from muster.lifecycle import is_admitted
from muster.model import Gang, Node, Resources, Role, RolePlacement, Running, Snapshot

GPUS = "nvidia.com/gpu"


def submitted(one: spec.TrainingJob) -> spec.TrainingJob:
    name = one.metadata.name
    meta = one.metadata.model_copy(update={"uid": f"u-{name}", "namespace": "d", "resource_version": "1"})
    return one.model_copy(update={"metadata": meta})


def world(jobs: tuple[spec.TrainingJob, ...], seen: list[NodeView], now: float = 1000.0) -> World:
    quota = queue(gpus=32)
    return World(
        now=now, nodes=tuple(seen), flavors=(flavor(),), queues=(quota,), jobs=jobs, pods={}, namespaces={"d": {}}
    )


def statuses(round_: Round) -> dict[str, spec.TrainingJobStatus]:
    return {write.job_uid: write.status for write in round_.writes if isinstance(write, WriteStatus)}


def admitted(one: spec.TrainingJob, seen: list[NodeView]) -> spec.TrainingJob:
    """The job as a crash leaves it between its admission and its first pod."""
    status = statuses(Engine(None).decide(world((one,), seen)))[one.metadata.uid]
    assert is_admitted(status)
    return one.model_copy(update={"status": status})


def created(round_: Round) -> set[str]:
    return {write.node for write in round_.writes if isinstance(write, CreatePod)}


def test_a_gang_that_still_fits_gets_its_pods_after_a_crash() -> None:
    seen = nodes(2)
    one = admitted(submitted(job("a", pods=2)), seen)
    round_ = Engine(None).decide(world((one,), seen))
    assert created(round_) == {"n0", "n1"}
    assert statuses(round_) == {}


def test_a_gang_whose_room_somebody_took_meanwhile_gets_another_place_and_no_pod_before() -> None:
    one = admitted(submitted(job("a", pods=1)), nodes(2))
    (place,) = one.status.placement
    taken = place.nodes[0].node
    foreign = Resources.of({GPUS: 1})
    seen = [replace(node, foreign=foreign) if node.name == taken else node for node in nodes(2)]
    engine = Engine(None)
    first = engine.decide(world((one,), seen))
    assert created(first) == set()
    status = statuses(first)["u-a"]
    assert not is_admitted(status)
    assert [c.reason for c in status.conditions if c.type == "Evicted"] == ["NoLongerFits"]
    assert (status.restarts, status.node_losses) == (0, 0)
    assert first.wake_at == 1000.0
    again = engine.decide(world((one.model_copy(update={"status": status}),), seen))
    assert created(again) == {"n0", "n1"} - {taken}


def test_a_gang_whose_node_was_cordoned_before_its_first_pod_gets_another_place() -> None:
    one = admitted(submitted(job("a", pods=1)), nodes(2))
    cordoned = one.status.placement[0].nodes[0].node
    seen = [replace(node, cordoned=node.name == cordoned) for node in nodes(2)]
    assert not is_admitted(statuses(Engine(None).decide(world((one,), seen)))["u-a"])


def running(name: str, gpus: int, at: float) -> Running:
    role = Role("r", 1, 1, Resources.of({GPUS: gpus}))
    gang = Gang(name, name, "q", 0, 0.0, (role,))
    return Running(gang, (RolePlacement("r", "any", (("n", 1),)),), admitted_at=at)


def test_of_two_that_do_not_fit_beside_each_other_the_later_one_goes() -> None:
    node = Node("n", Resources.of({GPUS: 8}), Resources.of({GPUS: 1}))
    pair = (running("old", 4, 1.0), running("new", 4, 2.0))
    snapshot = Snapshot(now=5.0, nodes=(node,), flavors=(), queues=(), waiting=(), running=pair)
    assert misfits(snapshot, {"old", "new"}).keys() == {"new"}
    assert misfits(snapshot, {"old"}).keys() == {"old"}, "one that has its pods stays"


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 12), st.data())
def test_whoever_stays_fits_unless_those_with_pods_alone_take_too_much(
    sizes: list[int], foreign: int, data: st.DataObject
) -> None:
    gangs = tuple(running(f"g{number}", gpus, float(number)) for number, gpus in enumerate(sizes))
    asked = {one.gang.uid for one in gangs if data.draw(st.booleans())}
    node = Node("n", Resources.of({GPUS: 8}), Resources.of({GPUS: foreign}))
    snapshot = Snapshot(now=9.0, nodes=(node,), flavors=(), queues=(), waiting=(), running=gangs)
    gone = misfits(snapshot, asked)
    assert gone.keys() <= asked
    left = foreign + sum(one.gang.roles[0].request.get(GPUS) for one in gangs if one.gang.uid not in gone)
    stay = [one for one in gangs if one.gang.uid in asked - gone.keys() and one.gang.roles[0].request]
    assert left <= 8 or not stay
