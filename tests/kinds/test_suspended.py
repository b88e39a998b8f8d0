"""Objects of another kind than TrainingJob queue, start, are evicted and end beside TrainingJobs."""

from __future__ import annotations

from dataclasses import replace

from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.kinds.mixed_cluster import DELAY_S, RUNTIME_S, MixedCluster
from tests.kinds.suspended import SuspendedObject

from muster.api.spec import ObjectMeta
from muster.engine import Engine
from muster.model import NodeInfo, Resources
from muster.simulate import JobBehavior
from muster.state import snapshot_of

SECONDS = JobBehavior(runtime_s=20)


def made(name: str, *, pods: int = 2, queue: str = "default") -> SuspendedObject:
    meta = ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version="1")
    return SuspendedObject(meta, pods=pods, queue=queue, request=Resources.of({"nvidia.com/gpu": 8, "pods": 1}))


def cluster(*objects: SuspendedObject) -> MixedCluster:
    """Two nodes of 8 GPUs; queue default is guaranteed all of them, guest borrows."""
    tree = [queue("all", 16), queue("default", 16, "all"), queue("guest", 0, "all")]
    return MixedCluster(nodes(2), [flavor()], tree, objects=objects)


def phase(world: MixedCluster) -> str:
    return world.objects["uid-a"].status.phase


def test_it_is_admitted_then_started_by_unsuspending_and_ends_when_its_controller_says_so() -> None:
    world = cluster(made("a"))
    settle(Engine(), world, until=DELAY_S)
    one = world.objects["uid-a"]
    assert (one.status.phase, one.nodes, world.patches) == ("Running", ("n0", "n1"), [("uid-a", False)])
    settle(Engine(), world, until=RUNTIME_S + 10)
    assert world.objects["uid-a"].status.phase == "Succeeded"


def test_an_object_that_ran_too_long_fails_with_the_name_of_the_field_that_its_kind_has_for_it() -> None:
    world = cluster(replace(made("a"), max_runtime_s=5.0))
    world.schedule(6, lambda: None)
    settle(Engine(), world, until=DELAY_S + 10)
    failed = next(one for one in world.objects["uid-a"].status.conditions if one.type == "Failed")
    assert (failed.reason, failed.message) == ("MaxRuntimeExceeded", "ran for its activeDeadlineSeconds of 5")


def test_it_waits_behind_a_training_job_and_starts_after_it() -> None:
    world = cluster()
    world.submit(job("first"), SECONDS)
    engine = Engine()
    settle(engine, world, until=1)
    world.objects["uid-a"] = made("a")
    world.schedule(2, lambda: None)
    settle(engine, world, until=10)
    waiting = world.objects["uid-a"].status
    assert (waiting.phase, waiting.queue_position, world.patches) == ("Pending", 1, [])
    settle(engine, world, until=30)
    assert world.objects["uid-a"].status.phase == "Running"


def test_it_is_evicted_by_suspending_and_its_capacity_is_free_once_no_pod_is_left() -> None:
    world, engine = cluster(made("a", queue="guest")), Engine()
    settle(engine, world, until=5)
    assert phase(world) == "Running"
    world.submit(job("owner"), SECONDS)
    settle(engine, world, until=5 + DELAY_S / 2)
    evicted = world.objects["uid-a"].status
    assert (evicted.phase, evicted.reason, world.patches[-1]) == ("Running", "Reclaimed", ("uid-a", True))
    assert world.pods("uid-default-owner") == (), "pods of the evicted object are left"
    settle(engine, world, until=10)
    assert (world.job("uid-default-owner").status.phase, phase(world)) == ("Running", "Pending")
    settle(engine, world, until=40)
    assert (phase(world), world.patches[-1]) == ("Running", ("uid-a", False))


def test_an_object_that_runs_without_an_admission_is_suspended() -> None:
    world, engine = cluster(), Engine()
    world.submit(job("first"), SECONDS)
    settle(engine, world, until=1)
    world.objects["uid-a"] = made("a")
    world.change("uid-a", suspend=False, nodes=("n0",))
    settle(engine, world, until=3)
    assert world.patches == [("uid-a", True)]


def test_an_evicted_object_keeps_its_capacity_until_it_is_suspended_also_before_it_has_pods() -> None:
    world, engine = cluster(made("a", queue="guest")), Engine()
    settle(engine, world, until=0)  # its controller has created no pod yet
    world.submit(job("owner"), SECONDS)
    settle(engine, world, until=DELAY_S * 3)
    assert world.patches == [("uid-a", False), ("uid-a", True)]
    assert world.object_pods["uid-a"] == ()
    assert world.job("uid-default-owner").status.phase == "Running"


def test_pods_that_run_beyond_the_number_admitted_are_charged_to_its_queue_and_moved_ones_are_not() -> None:
    """Its controller replaces a pod that is deleted at once, while that one may take hours to end."""
    world = cluster(made("a"))
    settle(Engine(), world, until=DELAY_S)
    (first, second) = world.object_pods["uid-a"]

    def charged() -> tuple[int, int]:
        (gang,) = snapshot_of(world.observe()).snapshot.running
        pods = sum(count for part in gang.placement for _, count in part.nodes)
        assert gang.gang.roles[0].min_replicas == max(2, pods), "it does not shrink"
        assert gang.state == "admitted", "it may be preempted: a user must not escape that by deleting pods"
        return pods, sum(node.unmanaged_usage.get("nvidia.com/gpu") for node in snapshot_nodes(world))

    assert charged() == (2, 0)
    slow = replace(first, name="slow", deleting=True, index=2)
    world.object_pods["uid-a"] = (slow, first, second)
    assert charged() == (3, 0)
    gated = replace(first, name="gated", gated=True, node="")
    world.object_pods["uid-a"] = (slow, first, second, gated)
    assert charged() == (3, 0)
    moved = replace(first, node="n1")
    world.object_pods["uid-a"] = (moved, second)
    assert charged() == (2, 8), "kube-scheduler chose the other node of the template: as many pods"


def snapshot_nodes(world: MixedCluster) -> tuple[NodeInfo, ...]:
    return tuple(snapshot_of(world.observe()).snapshot.nodes)
