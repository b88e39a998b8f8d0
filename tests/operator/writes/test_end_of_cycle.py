"""Writes at the end of a cycle: finalizers of queues, reports of invalid objects, trace statuses."""

from __future__ import annotations

from tests.operator.api_server import OperatorHarness, Server, new_queue, serve
from tests.operator.caches import FakeDryRuns, new_cache
from tests.operator.objects import job_document, job_seen, read

from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.events import EventRecorder
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.writes.finalizers import IN_USE, reconcile_finalizers
from muster_operator.writes.queue import WriteQueue

SINCE = "2026-11-21T10:00:00Z"
QUEUES = "PATCH /apis/muster.dev/v1alpha1/queues"


def leaving(name: str = "research", version: int = 3) -> RawCustomObject:
    """A queue with a deletion timestamp."""
    meta = {"name": name, "resourceVersion": str(version), "finalizers": [IN_USE], "deletionTimestamp": SINCE}
    return read(RawCustomObject, {"metadata": meta, "spec": {"namespaceSelector": {}}})


def fresh(name: str, version: int) -> RawCustomObject:
    """A queue without a finalizer."""
    return read(RawCustomObject, {"metadata": {"name": name, "resourceVersion": str(version)}, "spec": {}})


async def settle(api: AsyncKubeClient, cache: ClusterCache, writes: WriteQueue | None = None) -> None:
    await reconcile_finalizers(cache, writes or new_queue(api, cache))


def test_a_queue_stays_while_a_job_without_dry_run_names_it() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        cache, _ = new_cache(FakeDryRuns(None))
        cache.queues.on_upsert(leaving())
        cache.jobs.on_upsert(job_seen("waits", 5))
        assert training_jobs(cache.observe().workloads) == ()
        await settle(api, cache)
        assert server.calls == []
        cache.jobs.on_delete(job_seen("waits", 6))
        await settle(api, cache)
        assert server.calls == [f"{QUEUES}/research"]

    serve(server, scenario)


def test_a_queue_stays_while_an_unfinished_invalid_job_names_it() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        cache, _ = new_cache()
        cache.queues.on_upsert(leaving())
        cache.jobs.on_upsert(job_seen("odd", 5, bogus=1))
        assert cache.jobs.invalid
        await settle(api, cache)
        assert server.calls == []
        over = {"type": "Cancelled", "status": "True", "reason": "Cancelled", "lastTransitionTime": SINCE}
        status = {"phase": "Cancelled", "finishedAt": SINCE, "conditions": [over]}
        cache.jobs.on_upsert(read(RawCustomObject, {**job_document("odd", 6, bogus=1), "status": status}))
        await settle(api, cache)
        assert server.calls == [f"{QUEUES}/research"]

    serve(server, scenario)


def test_a_rejected_finalizer_delays_no_other_and_is_retried_after_a_pause() -> None:
    server, now = Server([("PATCH", "queues/a$", 422)]), [0.0]

    async def scenario(api: AsyncKubeClient) -> None:
        cache, _ = new_cache()
        cache.queues.on_upsert(fresh("a", 3))
        cache.queues.on_upsert(fresh("b", 4))
        writes = new_queue(api, cache, lambda: now[0])
        for _ in range(2):
            await settle(api, cache, writes)
        assert server.calls == [f"{QUEUES}/a", f"{QUEUES}/b"]
        now[0] = 1000.0
        await settle(api, cache, writes)
        assert server.calls[2:] == [f"{QUEUES}/a"]

    serve(server, scenario)


def test_a_rejected_report_delays_no_other_and_is_retried_after_a_pause() -> None:
    server, now = Server([("PATCH", "trainingjobs/a/", 422)]), [0.0]

    async def scenario(api: AsyncKubeClient) -> None:
        cache, _ = new_cache()
        cache.jobs.on_upsert(job_seen("a", 3, bogus=1))
        cache.jobs.on_upsert(job_seen("b", 4, bogus=1))
        recorder = EventRecorder(api, lambda: False, lambda: None)
        reports = InvalidObjectReporter(cache, new_queue(api, cache, lambda: now[0]), recorder, "me")
        for _ in range(2):
            await reports.report()
        statuses = [call.rpartition("/trainingjobs/")[2] for call in server.calls]
        assert statuses == ["a/status", "b/status"]
        now[0] = 1000.0
        await reports.report()
        assert len(server.calls) == 3

    serve(server, scenario)


def test_a_cycle_succeeds_though_its_final_writes_are_rejected() -> None:
    server = Server([("PATCH", "queues/odd$", 403), ("PATCH", "trainingjobs/unreadable/", 422)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.cache.queues.on_upsert(fresh("odd", 8))
        harness.cache.jobs.on_upsert(job_seen("unreadable", 9, bogus=1))
        for _ in range(3):
            await harness.run_cycle()
        assert harness.term.failures.failures == 0

    serve(server, scenario)


def test_a_concurrent_edit_of_a_queue_or_flavor_is_not_lost() -> None:
    """The operator's own write must not hide the edit, which was made before it and delivered after it."""
    server = Server(edited={"queues/research": 7, "flavors/f": 8})

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        await harness.run_cycle()
        assert f"{QUEUES}/research/status" in server.calls, "whose status is news"
        meta = {"name": "research", "resourceVersion": "7", "finalizers": [IN_USE]}
        quota = {"namespaceSelector": {}, "resources": [{"flavor": "f", "guaranteed": {"nvidia.com/gpu": "5"}}]}
        harness.cache.queues.on_upsert(read(RawCustomObject, {"metadata": meta, "spec": quota}))
        edited = {"metadata": {"name": "f", "resourceVersion": "8"}, "spec": {"nodeLabels": {"a": "b"}}}
        harness.cache.flavors.on_upsert(read(RawCustomObject, edited))
        observed = harness.cache.observe()
        assert observed.queues[0].spec.resources[0].guaranteed == {"nvidia.com/gpu": "5"}
        assert observed.flavors[0].spec.node_labels == {"a": "b"}
        await harness.run_cycle()
        (active,) = [one for one in harness.cache.observe().queues[0].status.conditions if one.type == "Active"]
        assert active.status == "True", "and it is written for what it is now"

    serve(server, scenario)
