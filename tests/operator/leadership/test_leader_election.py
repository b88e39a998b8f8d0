"""The leader has listed everything since it acquired the Lease, and stops leading when its watches fail."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
from tests.operator.api_server import serve, serving, until
from tests.operator.election import Cluster, operator
from tests.operator.objects import job

from muster.api import spec
from muster.engine import Engine
from muster.kinds.trainingjob.adapter import TrainingJobWorkload
from muster.kube.async_client import ApiRateLimits, AsyncKubeClient
from muster.kube.config import ClientConfig
from muster.kube.lease import Fence, LeaderElector, Lease, LeaseCandidate, LeaseTimes, boot_clock
from muster.kube.resources import PODS
from muster_operator.leader import LeaderTerm
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.settings import parse_flags
from muster_operator.supervision import ComponentExited

FREE_LEASE = msgspec.json.decode(b'{"metadata": {}}', type=Lease)


def test_an_operator_whose_watch_ends_releases_the_lease_and_exits() -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.lists.set()

        async def scenario(api: AsyncKubeClient) -> None:
            one, _, _ = operator(api)
            running = asyncio.create_task(one.run(asyncio.Event()))
            await until(lambda: one._leader.term is not None)
            assert cluster.holder == "me"
            watch = next(task for task, of in zip(one._informers._tasks, one._informers._reflectors, strict=True)
                         if of.resource is PODS)  # fmt: skip
            watch.cancel()
            with pytest.raises(ComponentExited, match="the watch of pods ended"):
                async with asyncio.timeout(60):
                    await running
            assert cluster.holder == ""

        await serving(cluster, scenario)

    asyncio.run(run())


def test_an_operator_that_is_asked_to_end_says_that_it_has_released_the_lease_and_not_that_it_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        cluster, stop = Cluster(), asyncio.Event()
        cluster.lists.set()

        async def scenario(api: AsyncKubeClient) -> None:
            one, _, _ = operator(api)
            running = asyncio.create_task(one.run(stop))
            await until(lambda: one._leader.term is not None)
            stop.set()
            async with asyncio.timeout(60):
                await running
            assert cluster.holder == ""

        await serving(cluster, scenario)

    with caplog.at_level("INFO"):
        asyncio.run(run())
    lines = [one.message for one in caplog.records if one.message.startswith("leadership ")]
    assert lines == ["leadership acquired", "leadership released"]


def test_a_lease_transition_during_the_first_list_causes_a_new_list() -> None:
    async def run() -> None:
        cluster = Cluster()

        async def scenario(api: AsyncKubeClient) -> None:
            (one, election, _), stop = operator(api), asyncio.Event()
            running = asyncio.create_task(one.run(stop))
            await until(lambda: cluster.holder == "me" and cluster.calls.count("LIST pods") >= 2)
            before = cluster.lease
            cluster.take({"holderIdentity": "other", "leaseDurationSeconds": 60, "acquireTime": "x"})
            await until(lambda: not election.may_write())
            cluster.take({"leaseDurationSeconds": 1})  # and released
            await until(lambda: cluster.holder == "me" and election.may_write())
            assert before is not None
            assert cluster.lease is not None
            assert cluster.lease["spec"]["acquireTime"] != before["spec"]["acquireTime"]
            lists = cluster.calls.count("LIST pods")
            cluster.lists.set()
            await until(lambda: one._leader.term is not None)
            assert cluster.calls.count("LIST pods") > lists
            stop.set()
            await running

        await serving(cluster, scenario)

    asyncio.run(run())


def test_decisions_of_an_earlier_term_are_not_written_in_a_later_one() -> None:
    now = [0.0]
    api = AsyncKubeClient(ClientConfig("http://127.0.0.1:1", None, dict), ApiRateLimits())
    candidate = LeaseCandidate("me", LeaseTimes())
    election = LeaderElector(api, "ns", "lease", candidate, lambda: now[0])
    fence = Fence(election)
    first = candidate.next_lease(FREE_LEASE, "10:00:00")
    candidate.on_renewed(first, 0.0, 0.0)
    assert not fence(), "nothing was listed yet"
    fence.enter(election.acquired)
    assert fence()
    now[0] = 11.0
    assert not fence()
    second = candidate.next_lease(first, "10:00:11")  # no other candidate held it
    candidate.on_renewed(second, 11.0, 11.0)
    assert fence()
    third = candidate.next_lease(FREE_LEASE, "10:00:20")  # another candidate held and released it
    candidate.on_renewed(third, 20.0, 20.0)
    now[0] = 20.0
    assert election.may_write()
    assert not fence()
    fence.enter(election.acquired)
    assert fence()


@pytest.mark.parametrize(("duration_s", "deadline_s"), [(2.5, 2.4), (1.4, 1.3), (15.0, 10.0)])
def test_the_lease_is_not_taken_before_its_holder_stops_writing(duration_s: float, deadline_s: float) -> None:
    flags = ["--lease-duration-seconds", str(duration_s), "--renew-deadline-seconds", str(deadline_s)]
    times = parse_flags([*flags, "--retry-period-seconds", "0.5"]).lease_times
    assert times is not None
    holder, other = LeaseCandidate("a", times), LeaseCandidate("b", times)
    lease = holder.next_lease(FREE_LEASE, "now")
    holder.on_renewed(lease, 0.0, 0.0)
    other.observe(lease, 0.0)
    for tenths in range(200):
        assert not (holder.holds(tenths / 10) and other.may_acquire(tenths / 10))


def test_a_standby_counts_no_jobs() -> None:
    now = [100.0]
    place = {"role": "trainer", "flavor": "h200", "nodes": [{"node": "n", "indexes": "0-1"}]}
    since = "2026-11-21T10:00:00Z"
    condition = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": since}
    status = spec.TrainingJobStatus.model_validate({"conditions": [condition], "placement": [place]})
    running = job().model_copy(update={"status": status})
    metrics = OperatorMetrics()
    research = spec.Queue.model_validate({"metadata": {"name": "research"}})
    job_metrics = JobMetrics(metrics, lambda: [TrainingJobWorkload(running)], lambda: [research], lambda: now[0])
    job_metrics.refresh()
    now[0] = 110.0
    job_metrics.refresh()
    gpu_seconds = partial(
        metrics.registry.get_sample_value,
        "muster_gpu_seconds_total",
        {"queue": "research", "namespace": "team", "resource": "nvidia.com/gpu"},
    )
    assert gpu_seconds() == 20.0
    job_metrics.reset()
    now[0] = 500.0
    assert b"muster_queue_jobs{" not in metrics.exposition()
    job_metrics.refresh()
    assert gpu_seconds() == 20.0


@pytest.mark.parametrize("leads", [True, False])
def test_gauges_of_jobs_are_exported_by_the_leader_only(leads: bool) -> None:
    cluster = Cluster()

    async def scenario(api: AsyncKubeClient) -> None:
        one, election, candidate = operator(api)
        one._job_metrics._jobs = lambda: [TrainingJobWorkload(job())]
        if leads:
            candidate.on_renewed(candidate.next_lease(FREE_LEASE, "now"), boot_clock(), boot_clock())
            one._fence.enter(election.acquired)
            one._leader.term = LeaderTerm(Engine())
        text = one._endpoints.exposition().decode()
        assert ("muster_queue_jobs{" in text, "\nmuster_leading 1.0\n" in text) == (leads, leads)

    serve(cluster, scenario)
