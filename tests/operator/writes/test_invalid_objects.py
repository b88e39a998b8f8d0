"""Jobs and flavors that cannot be read, and concurrent events: own writes, edits, deletions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import NOW, OperatorHarness, Server, admitted, new_queue, serve
from tests.operator.caches import FakeDryRuns, new_cache, relist
from tests.operator.objects import job_document, job_seen, read

from muster.api import spec
from muster.errors import ClusterError
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject, V1Pod
from muster.workload import transitions
from muster.workload.conditions import COMPLETE
from muster.workload.timeouts import Timeouts
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.events import EventRecorder
from muster_operator.informers import read_by_name
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.writes.finalizers import used_queues

WRONG = "spec.roles: must be a list; got 'none'"
STATUS = "PUT /apis/muster.dev/v1alpha1/namespaces/team/trainingjobs/llama/status"
Status = dict[str, Any]


def odd(version: int, status: Status | None = None) -> RawCustomObject:
    """The job after an edit that makes it invalid."""
    document = job_document(version=version, roles="none")
    document["metadata"]["generation"] = 2
    return read(RawCustomObject, document | {"status": status or {}})


def running_and_odd(cache: ClusterCache, status: Status | None = None) -> spec.TrainingJobStatus:
    """A job with capacity, edited into an invalid form; returns its status."""
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document(version=5), "status": status or admitted()}))
    cache.jobs.on_upsert(odd(6, status or admitted()))
    known = cache.jobs.get("uid-llama")
    assert known is not None
    return known.job.status


def preempted(status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
    """It was evicted and its pods have ended."""
    evicted = transitions.evict(status, "Preempted", "for another", 2000.0)
    return transitions.requeue(evicted, 2000.0, Timeouts(), [], 0.0)


def as_written(status: spec.TrainingJobStatus) -> Status:
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


# ---- own writes of a job that was edited while it had capacity


NOT_SELECTED = {("research", "team"): False}


def test_a_job_that_finishes_while_invalid_no_longer_uses_its_queue() -> None:
    cache, _ = new_cache()
    over = transitions.finish(running_and_odd(cache), COMPLETE, "Completed", "done", 2000.0)
    assert used_queues(cache, NOT_SELECTED) == {"research"}
    cache.jobs.on_status_written("uid-llama", over, 7)
    cache.jobs.on_upsert(odd(7, as_written(over)))
    assert used_queues(cache, NOT_SELECTED) == set()


@pytest.mark.parametrize("first", ["answer", "event"])
def test_a_job_that_is_evicted_while_invalid_is_visible_and_not_admitted(first: str) -> None:
    cache, _ = new_cache()
    left = preempted(running_and_odd(cache))
    if first == "event":
        cache.jobs.on_upsert(odd(7, as_written(left)))
    cache.jobs.on_status_written("uid-llama", left, 7)
    observed = cache.observe()
    assert [job.status.placement for job in training_jobs(observed.workloads)] == [[]]
    assert observed.pod_rejections == {"uid-llama": f"it cannot be read: {WRONG}"}


@pytest.mark.parametrize("result_is_known", [True, False])
def test_it_may_be_admitted_again_once_it_is_valid(result_is_known: bool) -> None:
    dry_runs = FakeDryRuns()
    cache, _ = new_cache(dry_runs)
    cache.jobs.on_status_written("uid-llama", preempted(running_and_odd(cache)), 7)
    if not result_is_known:
        dry_runs.answer = None
    cache.jobs.on_upsert(job_seen(version=8))
    observed = cache.observe()
    assert (cache.jobs.invalid, len(training_jobs(observed.workloads)), observed.pod_rejections) == ({}, 1, {})


def test_a_preempted_invalid_job_is_not_placed_by_its_old_spec_and_is_reported_once() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        leaving = {"type": "Evicted", "status": "True", "reason": "Preempted", "lastTransitionTime": NOW}
        status = admitted()
        running_and_odd(harness.cache, status | {"conditions": [*status["conditions"], leaving]})
        for _ in range(4):
            await harness.run_cycle()
        known = harness.cache.jobs.get("uid-llama")
        assert known is not None
        (condition,) = [one for one in known.job.status.conditions if one.type == "Admitted"]
        assert (condition.status, condition.reason, condition.message) == (
            "False",
            "PodRejected",
            f"it cannot be read: {WRONG}",
        )
        assert (server.count(STATUS), server.count("POST /api/v1/namespaces/team/pods")) == (1, 0)
        assert harness.pending_events().count(("llama", "InvalidSpec")) == 1
        server.version += 1
        fixed = job_document(version=server.version)
        harness.cache.jobs.on_upsert(read(RawCustomObject, fixed | {"status": as_written(known.job.status)}))
        await harness.run_cycle()
        assert harness.phase("llama") == "Admitted"

    serve(server, scenario)


# ---- events between the write of a report and its answer


class Fixed:
    """Answers with these texts, one after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=self.answers.pop(0))


class Between(Server):
    """`meanwhile` is called with the version of the write, once the first report is written."""

    def __init__(self, meanwhile: Callable[[int], None]) -> None:
        super().__init__()
        self.meanwhile: Callable[[int], None] | None = meanwhile

    async def answer(self, request: web.Request) -> web.StreamResponse:
        answer = await super().answer(request)
        if request.method == "PATCH" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile(self.version)
            self.version += 5
        return answer


def reported_after(
    before: Callable[[ClusterCache], None], meanwhile: Callable[[ClusterCache, int], None]
) -> ClusterCache:
    """The cache after two cycles with reports of an object that `before` creates."""
    cache, _ = new_cache()
    before(cache)

    async def scenario(api: AsyncKubeClient) -> None:
        recorder = EventRecorder(api, lambda: False, lambda: None)
        reports = InvalidObjectReporter(cache, new_queue(api, cache), recorder, "me")
        for _ in range(2):
            await reports.report()

    serve(Between(lambda version: meanwhile(cache, version)), scenario)
    return cache


def test_a_job_deleted_while_its_report_is_written_is_forgotten() -> None:
    def deleted(cache: ClusterCache, version: int) -> None:
        cache.jobs.on_upsert(odd(version))
        cache.jobs.on_delete(odd(version + 1))

    assert reported_after(lambda cache: cache.jobs.on_upsert(odd(7)), deleted).jobs.invalid == {}


def test_a_job_fixed_while_its_report_is_written_can_be_read() -> None:
    def fixed(cache: ClusterCache, version: int) -> None:
        cache.jobs.on_upsert(odd(version))
        cache.jobs.on_upsert(job_seen(version=version + 1))

    cache = reported_after(lambda cache: cache.jobs.on_upsert(odd(7)), fixed)
    assert (cache.jobs.invalid, len(training_jobs(cache.observe().workloads))) == ({}, 1)


def flavor(version: int, labels: Any) -> RawCustomObject:
    return read(
        RawCustomObject, {"metadata": {"name": "g", "resourceVersion": str(version)}, "spec": {"nodeLabels": labels}}
    )


def test_a_flavor_fixed_while_its_report_is_written_can_be_read() -> None:
    def fixed(cache: ClusterCache, version: int) -> None:
        cache.flavors.on_upsert(flavor(version, 5))
        cache.flavors.on_upsert(flavor(version + 1, {}))

    observed = reported_after(lambda cache: cache.flavors.on_upsert(flavor(7, 5)), fixed).observe()
    assert ([one.metadata.name for one in observed.flavors], dict(observed.decode_errors.flavors)) == (["g"], {})


def test_a_flavor_deleted_while_its_report_is_written_is_forgotten() -> None:
    def deleted(cache: ClusterCache, version: int) -> None:
        cache.flavors.on_delete(flavor(version + 1, 5))

    cache = reported_after(lambda cache: cache.flavors.on_upsert(flavor(7, 5)), deleted)
    assert (cache.flavors.invalid, dict(cache.observe().decode_errors.flavors)) == ({}, {})


def test_only_objects_that_are_invalid_now_are_remembered_as_reported() -> None:
    cache, _ = new_cache()
    counts: list[tuple[int, int]] = []

    async def scenario(api: AsyncKubeClient) -> None:
        recorder = EventRecorder(api, lambda: False, lambda: None)
        reports = InvalidObjectReporter(cache, new_queue(api, cache), recorder, "me")
        cache.flavors.on_upsert(flavor(1, 5))
        for version in range(2, 6):
            edited = {"name": "q", "uid": "q", "generation": version, "resourceVersion": str(version)}
            cache.queues.on_upsert(read(RawCustomObject, {"metadata": edited, "spec": {"weight": "x"}}))
            for _ in range(2):
                await reports.report()
            counts.append((len(reports._reported), sum(e.namespace == "default" for e in recorder.pending())))

    serve(Server(), scenario)
    assert counts == [(2, 2), (2, 3), (2, 4), (2, 5)]


@pytest.mark.parametrize("answer", ["<html>", "{}", "[]", '{"items": 5}'])
def test_an_answer_that_is_not_a_list_is_an_error_and_not_a_missing_object(answer: str) -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        with pytest.raises(ClusterError, match="not a list"):
            await read_by_name(api, "/api/v1/namespaces/a/pods", "p", V1Pod)

    serve(Fixed(answer), scenario)


def test_an_object_that_cannot_be_read_by_name_hides_no_other() -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        (pod,) = await read_by_name(api, "/api/v1/namespaces/a/pods", "p", V1Pod)
        assert pod.metadata.name == "p"
        assert await read_by_name(api, "/api/v1/namespaces/a/pods", "q", V1Pod) == []

    items = '[{"metadata": 5}, null, {"metadata": {"name": "p"}}]'
    serve(Fixed(f'{{"items": {items}}}', '{"items": null}'), scenario)


# ---- wake-ups


def test_the_deletion_of_an_invalid_job_is_a_change() -> None:
    """A queue may have waited for it."""
    cache, changes = new_cache()
    cache.jobs.on_upsert(odd(5))
    assert changes.during(lambda: cache.jobs.on_delete(odd(6))) > 0
    cache.jobs.on_upsert(odd(7))
    assert changes.during(lambda: relist(cache.jobs, [], 8)) > 0


def test_the_deletion_of_an_invisible_job_is_a_change() -> None:
    cache, changes = new_cache(FakeDryRuns(None))
    cache.jobs.on_upsert(job_seen())
    assert changes.during(lambda: cache.jobs.on_delete(job_seen(version=6))) > 0
