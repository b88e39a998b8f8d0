"""Deeply nested objects, and bugs that one object causes, do not affect other objects."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.operator.api_server import OperatorHarness, Server, serve, tried
from tests.operator.caches import new_cache, relist
from tests.operator.objects import job_document, job_seen, read

from muster.api import spec
from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cached_job import CachedJob, DryRunResult
from muster_operator.pending_events import PendingEvent
from muster_operator.writes.queue import written_metadata

TOO_DEEP = "spec.roles[0].template.spec.odd.x.x.x.x: must be nested at most 64 levels deep"


def deep(levels: int) -> str:
    return '{"x":' * levels + "0" + "}" * levels


def deep_job(levels: int, version: int = 1, status: dict[str, Any] | None = None) -> RawCustomObject:
    """The job as a watch delivers it."""
    document = job_document("deep", version) | ({} if status is None else {"status": status})
    document["spec"]["roles"][0]["template"]["spec"]["odd"] = "ODD"
    text = json.dumps(document).replace('"ODD"', deep(levels)).encode()
    return decode_truncated(msgspec.json.Decoder(RawCustomObject).decode, text)


@pytest.mark.parametrize("levels", [59, 240, 940, 960, 980, 1500, 9990])
def test_a_too_deep_job_is_reported_by_field_and_hides_no_other(levels: int) -> None:
    cache, _ = new_cache()
    cache.jobs.on_upsert(job_seen("other"))
    cache.jobs.on_upsert(deep_job(levels))
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["other"]
    assert cache.jobs.invalid["team/deep"].error.startswith(TOO_DEEP)
    cache.jobs.on_upsert(job_seen("deep", 2))
    assert sorted(job.metadata.name for job in training_jobs(cache.observe().workloads)) == ["deep", "other"]
    assert cache.jobs.invalid == {}
    cache.jobs.on_upsert(deep_job(levels, 3))
    cache.jobs.on_delete(deep_job(levels, 4))
    assert cache.jobs.invalid == {}


def test_an_admitted_job_keeps_its_capacity_when_edited_into_a_too_deep_one() -> None:
    admitted = {
        "type": "Admitted",
        "status": "True",
        "reason": "Admitted",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    status = {"conditions": [admitted], "phase": "Running"}
    cache, _ = new_cache()
    cache.jobs.on_upsert(read(RawCustomObject, {**job_document("deep"), "status": status}))
    cache.jobs.on_upsert(deep_job(5000, 2, status))
    (job,) = training_jobs(cache.observe().workloads)
    assert job.status.phase == "Running"
    assert len(job.spec.roles) == 1


@pytest.mark.parametrize("levels", [70, 960, 980, 9990])
def test_a_too_deep_flavor_or_queue_is_reported(levels: int) -> None:
    text = '{"metadata":{"name":"odd","resourceVersion":"5"},"spec":%s}'
    cache, _ = new_cache()
    shape = msgspec.json.Decoder(RawCustomObject)
    tolerations = text % f'{{"tolerations":[{{"key":"k","odd":{deep(levels)}}}]}}'
    cache.flavors.on_upsert(decode_truncated(shape.decode, tolerations.encode()))
    cache.queues.on_upsert(decode_truncated(shape.decode, (text % f'{{"odd":{deep(levels)}}}').encode()))
    errors = cache.observe().decode_errors
    assert errors.flavors["odd"].startswith("spec.tolerations[0].odd.x")
    assert "64 levels" in errors.flavors["odd"]
    assert errors.queues["odd"].startswith("spec.odd: unknown field")


def test_the_answer_to_a_write_of_a_deep_object_has_its_version() -> None:
    answer = '{"metadata":{"managedFields":[%s],"name":"deep","resourceVersion":"12"}}' % deep(9990)  # noqa: UP031
    assert written_metadata(answer.encode()).version == 12
    with pytest.raises(ClusterError, match="not an object"):
        written_metadata(b"<html>")


def test_an_exception_while_one_job_is_read_is_reported_and_hides_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, _ = new_cache()
    read_one = cache.jobs._reader.read

    def fails(item: RawCustomObject, before: CachedJob | None) -> CachedJob:
        if item.metadata.name == "odd":
            raise KeyError("a bug")
        return read_one(item, before)

    monkeypatch.setattr(cache.jobs._reader, "read", fails)
    relist(cache.jobs, [job_seen("odd"), job_seen("other", 2)], 3)
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["other"]
    assert cache.jobs.invalid["team/odd"].error == "this version of the operator cannot read the job: KeyError: 'a bug'"


def test_an_exception_while_one_job_is_written_delays_no_other() -> None:
    server = Server()

    def deep_status(known: CachedJob, status: spec.TrainingJobStatus) -> spec.TrainingJobStatus:
        if known.job.metadata.name == "odd":
            raise OverflowError("a bug")
        return status

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.traces.with_traces = deep_status  # type: ignore[method-assign]
        harness.submit("odd", 5)
        harness.submit("good", 6)
        await harness.run_cycle()
        assert (harness.phase("odd"), harness.phase("good")) == ("Pending", "Admitted")
        assert server.count("POST /api/v1/namespaces/team/pods/good-") == 2
        assert harness.queue.pause_s("uid-odd") > 0
        harness.traces.with_traces = lambda known, status: status  # type: ignore[method-assign]
        harness.now = harness.queue.pause_s("uid-odd")
        await harness.run_cycle()
        assert harness.phase("odd") == "Admitted"

    serve(server, scenario)


def test_a_template_whose_dry_run_fails_is_rejected_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        ask = partial(tried, harness, harness.dry_runs)
        with monkeypatch.context() as patched:
            patched.setattr("muster_operator.dry_run.pod_manifest", fails)
            assert await ask() == DryRunResult(rejection="dry run of its pods failed: RecursionError: a bug")
        assert await ask() == DryRunResult()

    def fails(*what: Any) -> Any:
        raise RecursionError("a bug")

    serve(Server(), scenario)


def test_an_event_that_cannot_be_encoded_blocks_no_other() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.recorder.enqueue(PendingEvent("team", {"note": "\ud800"}))
        harness.recorder.enqueue(PendingEvent("team", {"metadata": {"name": "good"}}))
        sending = asyncio.create_task(harness.recorder.run())
        async with asyncio.timeout(60):
            while server.count("POST /apis/events.k8s.io/v1/namespaces/team/events/good") == 0:
                assert not sending.done(), sending.exception()
                await asyncio.sleep(0.01)
        sending.cancel()

    serve(server, scenario)
