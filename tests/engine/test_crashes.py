"""An engine may be killed between any two writes; another continues from what is written."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.engine.checked_cluster import Killed, Watched, cluster_of, workloads
from tests.engine.faults import FAULTS, KILLS, Arrivals, Fault, check_end, may_fail, schedule_faults
from tests.engine.objects import flavor, job, nodes, queue

from muster.api import spec
from muster.api.spec import TERMINAL_PHASES
from muster.engine import Engine, run_cycle
from muster.simulate import JobBehavior


def run(cluster: Watched, kills: list[int]) -> None:
    """Until nothing happens any more; each number is how many writes the next engine may make before it is killed."""
    engine, wake_at = Engine(), None
    cluster.writes_left = kills.pop(0) if kills else None
    for _ in range(5000):
        jobs = cluster.job_uids()
        ended = all(cluster.job(uid).status.phase in TERMINAL_PHASES for uid in jobs)
        times = [at for at in (cluster.next_event_time(), wake_at) if at is not None]
        if not times or (ended and cluster.next_event_time() is None):
            assert ended, [(uid, cluster.job(uid).status) for uid in jobs]
            return
        cluster.advance(max(cluster.now, min(times)))
        try:
            wake_at = run_cycle(cluster, engine).wake_at
        except Killed:
            engine, wake_at = Engine(), cluster.now
            cluster.writes_left = kills.pop(0) if kills else None
    raise AssertionError("never ends")


def check_killed(arrivals: Arrivals, kills: list[int]) -> None:
    cluster = cluster_of(arrivals)
    run(cluster, list(kills))
    assert all(event.reason != "NominationExpired" for event in cluster.events), "a nomination expired unused"
    for _, wanted, work in arrivals:
        status = cluster.job(f"uid-default-{wanted.metadata.name}").status
        attempts = {pod.attempt for pod in cluster.created if pod.job_uid.endswith(wanted.metadata.name)}
        failures = sum(work.exit_code(attempt) != 0 for attempt in attempts)
        assert status.restarts <= min(2, failures)
        assert (status.nomination, status.eviction) == (None, None)
        if not work.exit_codes:
            assert (status.phase, status.restarts) == ("Succeeded", 0)


def check_with_faults(arrivals: Arrivals, kills: list[int], faults: list[Fault]) -> None:
    cluster = cluster_of(arrivals)
    schedule_faults(cluster, faults)
    run(cluster, list(kills))
    check_end(cluster, [wanted.metadata.name for _, wanted, _ in arrivals], may_fail(arrivals))
    losses = [cluster.job(uid).status.node_losses for uid in cluster.job_uids()]
    assert max(losses, default=0) <= len(faults)


@given(workloads(), KILLS)
def test_killed_between_any_two_writes_every_job_still_ends_and_no_pod_runs_twice(
    arrivals: Arrivals, kills: list[int]
) -> None:
    check_killed(arrivals, kills)


@given(workloads(), KILLS, FAULTS)
def test_whatever_is_lost_or_killed_everything_ends_and_nothing_runs_twice(
    arrivals: Arrivals, kills: list[int], faults: list[Fault]
) -> None:
    check_with_faults(arrivals, kills, faults)


@given(workloads(), st.lists(st.tuples(st.integers(3, 60), st.integers(0, 11)), min_size=1, max_size=4))
def test_roles_edited_while_pods_terminate_take_no_capacity_of_others(
    arrivals: Arrivals, edits: list[tuple[int, int]]
) -> None:
    crowd = [(0.0, wanted, replace(work, runtime_s=60, stop_s=40.0, exit_codes=())) for _, wanted, work in arrivals]
    check_with_faults(crowd, [], [(float(at), "roles", number) for at, number in edits])


@given(workloads(), st.dictionaries(st.integers(0, 60), st.tuples(st.integers(0, 5), st.booleans()), max_size=4))
def test_a_user_who_edits_between_two_writes_is_never_overruled(
    arrivals: list[tuple[float, spec.TrainingJob, JobBehavior]], edits: dict[int, tuple[int, bool]]
) -> None:
    cluster = cluster_of(arrivals)
    for write, (number, cancel) in edits.items():
        uid = f"uid-default-j{number % len(arrivals)}"
        cluster.edits[write] = (uid, {"cancel": True} if cancel else {"priority": 9})
    run(cluster, [])
    for uid in cluster.job_uids():
        wanted = cluster.job(uid)
        assert wanted.status.phase in TERMINAL_PHASES
        assert wanted.spec.cancel or wanted.status.phase != "Cancelled"


def test_a_status_that_changed_meanwhile_ends_the_cycle_and_the_next_one_sees_the_change() -> None:
    cluster = Watched(nodes(1), [flavor()], [queue()])
    engine = Engine()
    uid = cluster.submit(job("a", 1), JobBehavior(10))
    cluster.edits[0] = (uid, {"cancel": True})
    assert run_cycle(cluster, engine).wake_at == cluster.now
    assert cluster.pods(uid) == ()
    run_cycle(cluster, engine)
    assert cluster.job(uid).status.phase == "Cancelled"
    assert cluster.pods(uid) == ()
