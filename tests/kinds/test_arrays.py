"""An array: its indices are queued, placed, charged and end one by one, and one object keeps what is known of them."""

from __future__ import annotations

import tracemalloc

import pytest
from tests.engine.objects import flavor, nodes, queue
from tests.kinds.array_cluster import ArrayCluster, array_cluster, array_job, run_to_end

from muster.api.spec import JobDependency, format_indices, index_set
from muster.engine import Engine, run_cycle
from muster.errors import Conflict, InvalidSpec
from muster.kinds.trainingjob.array_changes import with_index_cancelled, with_retry
from muster.kinds.trainingjob.array_workloads import array_view
from muster.kinds.trainingjob.arrays import index_job
from muster.usage.segments import segments_of


def test_indices_are_ranges() -> None:
    assert format_indices({7, 0, 1, 2, 9}) == "0-2,7,9"
    assert index_set("0-2,7,9") == {0, 1, 2, 7, 9}
    assert format_indices(()) == ""


def test_all_indices_run_and_at_most_as_many_at_a_time_as_allowed() -> None:
    world = array_cluster(array_job("0-29", parallelism=5))
    engine = Engine()
    run_cycle(world, engine)
    run_cycle(world, engine)
    assert set(world.starts) == set(range(5)), "the lowest ones first"
    run_to_end(world)
    status = world.job.status
    assert (status.phase, status.array and status.array.succeeded) == ("Succeeded", "0-29")
    assert world.starts == dict.fromkeys(range(30), 1)


def test_an_index_that_fails_leaves_the_others_running_and_is_retried_alone() -> None:
    world = array_cluster(array_job("0-9"))
    world.fails = {3: 1, 7: 1}
    run_to_end(world)
    assert world.job.status.phase == "Failed"
    assert world.job.status.array is not None
    assert (world.job.status.array.failed, world.job.status.array.succeeded) == ("3,7", "0-2,4-6,8-9")
    assert [one.index for one in world.job.status.array.failures] in ([3, 7], [7, 3])
    wanted = with_retry(world.job).spec.array
    assert wanted is not None
    world.edit(retries=wanted.retries)
    run_cycle(world, Engine())
    assert not world.job.status.finished_at
    run_to_end(world)
    assert (world.job.status.phase, world.starts[3], world.starts[7], world.starts[0]) == ("Succeeded", 2, 2, 1)


def test_a_cancelled_index_does_not_start() -> None:
    world = array_cluster(array_job("0-9", cancel="2,4-5"))
    run_to_end(world)
    assert world.job.status.array is not None
    assert (world.job.status.phase, world.job.status.array.cancelled) == ("Cancelled", "2,4-5")
    assert set(world.starts) == {0, 1, 3, 6, 7, 8, 9}


def test_an_index_is_a_job_of_its_own_while_it_waits_runs_and_has_ended() -> None:
    world = array_cluster(array_job("0-2", parallelism=1))
    run_cycle(world, Engine())
    run_cycle(world, Engine())
    found = [index_job(world.job, index) for index in range(4)]
    assert [one and (one.metadata.name, one.status.phase) for one in found] == [
        ("sweep-0", "Running"),
        ("sweep-1", "Pending"),
        ("sweep-2", "Pending"),
        None,
    ]
    run_to_end(world)
    last = index_job(world.job, 2)
    assert last is not None
    assert (last.metadata.uid, last.status.phase) == ("uid-sweep/2", "Succeeded")


def test_what_did_not_change_stays_the_same_object() -> None:
    world = array_cluster(array_job("0-9", parallelism=3))
    run_cycle(world, Engine())
    before = array_view(world.job)
    moved = world.job.model_copy(update={"status": world.job.status.model_copy(update={"reason": "Other"})})
    after = array_view(moved, before)
    assert all(after.indices[index] is before.indices[index] for index in before.indices)


@pytest.mark.parametrize("seed", range(3))
def test_after_kills_no_index_is_forgotten_runs_twice_or_runs_again(seed: int) -> None:
    world = array_cluster(array_job("0-299", parallelism=20))
    world.fails = dict.fromkeys(range(0, 300, 50), 1)
    assert run_to_end(world, kills=25, seed=seed, every=60) >= 20
    indices = world.job.status.array
    assert indices is not None
    assert index_set(indices.succeeded) | index_set(indices.failed) == set(range(300))
    assert index_set(indices.succeeded) == world.succeeded
    assert set(world.starts) == set(range(300))


def test_an_index_waits_for_the_same_index_of_another_array() -> None:
    first = array_cluster(array_job("0-3", parallelism=1, cancel="3"))
    first.fails = {2: 1}
    run_to_end(first)
    wanted = array_job("0-4", parallelism=5)
    depends_on = [JobDependency(job="sweep", each_index=True)]
    wanted = wanted.model_copy(
        update={
            "metadata": wanted.metadata.model_copy(update={"name": "second", "uid": "uid-second"}),
            "spec": wanted.spec.model_copy(update={"depends_on": depends_on}),
        }
    )
    second = ArrayCluster(wanted, nodes(2), [flavor()], [queue("default", 16)], others=(first.job,))
    engine = Engine()
    for _ in range(2):
        run_cycle(second, engine)
    result = run_cycle(second, engine)
    assert set(second.starts) == {0, 1}
    reasons = {uid.rpartition("/")[2]: wait.reason for uid, wait in result.waits.items()}
    assert reasons == dict.fromkeys("234", "DependencyNeverSatisfied")


def test_the_status_of_500_active_indices_stays_below_256_kib() -> None:
    world = array_cluster(array_job("0-9999", parallelism=500), gpus=512)
    engine = Engine()
    for _ in range(3):
        run_cycle(world, engine)
    assert world.job.status.array is not None
    assert len(world.job.status.array.active) == 500
    assert world.size() < 256 * 2**10


def test_of_an_index_only_cancel_can_be_asked() -> None:
    with pytest.raises(InvalidSpec, match="only cancel"):
        with_index_cancelled(array_job(), 3, {"suspend": True})
    with pytest.raises(Conflict, match="no index"):
        with_retry(array_job())


def test_a_retried_index_is_charged_although_its_first_attempt_is_in_the_record() -> None:
    world = array_cluster(array_job("0-3"))
    world.fails = {3: 1}
    run_to_end(world)
    wanted = with_retry(world.job).spec.array
    assert wanted is not None
    world.edit(retries=wanted.retries)
    engine = Engine()
    for _ in range(3):
        run_cycle(world, engine)
    again = index_job(world.job, 3)
    assert again is not None
    segments = segments_of(again, world.now + 60)
    assert segments is not None
    assert len(segments.with_end().after(1)) == 1, "the first segment is in the record"


def test_sets_of_indices_that_are_kept_take_little_memory() -> None:
    tracemalloc.start()
    for last in range(9000, 9200):  # each index that ends makes a new text
        index_set(f"0-{last}")
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 64 * 2**20
