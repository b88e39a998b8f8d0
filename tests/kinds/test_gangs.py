"""One object with several gangs: each queues, is placed, charged, evicted and ends by itself."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.kinds.mixed_cluster import DELAY_S, RUNTIME_S, MixedCluster
from tests.kinds.suspended import SuspendedObject

from muster.api.spec import ObjectMeta
from muster.engine import Engine
from muster.model import Resources
from muster.simulate import JobBehavior
from muster.usage.segments import segments_of
from muster.workload.planning import gang_key, split_gang_key

KEYS = ("uid-sweep", "uid-sweep/1", "uid-sweep/2")


def gangs(queue: str = "default") -> list[SuspendedObject]:
    """The three gangs of one object: one pod of 8 GPUs each."""
    meta = ObjectMeta(name="sweep", namespace="default", uid="uid-sweep", resource_version="1")
    request = Resources.of({"nvidia.com/gpu": 8, "pods": 1})
    return [SuspendedObject(meta, index=index, pods=1, queue=queue, request=request) for index in range(3)]


def cluster(*objects: SuspendedObject) -> MixedCluster:
    """Two nodes of 8 GPUs; queue default is guaranteed all of them, guest borrows."""
    tree = [queue("all", 16), queue("default", 16, "all"), queue("guest", 0, "all")]
    return MixedCluster(nodes(2), [flavor()], tree, objects=objects)


def phases(world: MixedCluster) -> list[str]:
    return [world.objects[key].status.phase for key in KEYS]


def test_the_first_gang_has_the_uid_of_its_object_as_key_and_the_others_their_index_too() -> None:
    assert tuple(gang_key("uid-sweep", index) for index in range(3)) == KEYS
    assert [split_gang_key(key) for key in KEYS] == [("uid-sweep", 0), ("uid-sweep", 1), ("uid-sweep", 2)]


def test_gangs_of_one_object_are_placed_charged_and_end_one_by_one() -> None:
    world, engine = cluster(*gangs()), Engine()
    settle(engine, world, until=DELAY_S)
    assert phases(world) == ["Running", "Running", "Pending"]
    assert {world.objects[key].nodes for key in KEYS[:2]} == {("n0",), ("n1",)}
    assert world.objects[KEYS[2]].status.queue_position == 1
    settle(engine, world, until=RUNTIME_S + 10)
    assert phases(world) == ["Succeeded", "Succeeded", "Running"]
    found = [segments_of(one, world.now, key) for key, one in world.objects.items()]
    assert [one.uid for one in found if one is not None] == list(KEYS)
    settle(engine, world, until=2 * RUNTIME_S + 20)
    assert phases(world) == ["Succeeded"] * 3


def test_a_gang_is_evicted_without_the_others_of_its_object() -> None:
    world, engine = cluster(*gangs("guest")[:2]), Engine()
    settle(engine, world, until=5)
    world.submit(job("owner", pods=1), JobBehavior(runtime_s=20))
    settle(engine, world, until=10)
    assert world.job("uid-default-owner").status.phase == "Running"
    assert sorted(world.objects[key].status.phase for key in KEYS[:2]) == ["Pending", "Running"]
    assert [suspend for _, suspend in world.patches].count(True) == 1


def test_a_gang_that_is_suspended_leaves_the_others_running() -> None:
    world, engine = cluster(*gangs()[:2]), Engine()
    settle(engine, world, until=5)
    world.objects[KEYS[1]] = replace(world.objects[KEYS[1]], is_suspended=True)
    world.schedule(6, lambda: None)
    settle(engine, world, until=10)
    assert [world.objects[key].status.phase for key in KEYS[:2]] == ["Running", "Suspended"]
