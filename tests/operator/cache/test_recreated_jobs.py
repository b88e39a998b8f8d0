"""A job that is deleted and created again with the same name and spec is another job with the same templates."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, serve, until
from tests.operator.caches import FakeDryRuns, new_cache, relist, report_dry_runs
from tests.operator.objects import job_document, job_seen, read

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.cache.cluster_cache import ClusterCache


def written(version: int, uid: str) -> dict[str, Any]:
    document = job_document(version=version)
    document["metadata"]["uid"] = uid
    return document


def replaced() -> tuple[ClusterCache, FakeDryRuns]:
    """Two lists between which the job was replaced; its dry run has no result yet."""
    dry_runs = FakeDryRuns(None)
    cache, _ = new_cache(dry_runs)
    relist(cache.jobs, [read(RawCustomObject, written(5, "old"))], 5)
    relist(cache.jobs, [read(RawCustomObject, written(9, "new"))], 9)
    return cache, dry_runs


def shown(cache: ClusterCache) -> list[str]:
    return [job.metadata.uid for job in cache.jobs.visible()]


def test_the_new_job_is_visible_once_its_dry_runs_have_results() -> None:
    cache, dry_runs = replaced()
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert shown(cache) == ["new"]


def test_other_jobs_of_its_template_become_visible_after_its_deletion() -> None:
    cache, dry_runs = replaced()
    for number in range(8):
        cache.jobs.on_upsert(job_seen(f"other{number}", 10 + number))
    cache.jobs.on_delete(read(RawCustomObject, written(30, "new")))
    dry_runs.answer = DryRunResult()
    report_dry_runs(cache)
    assert sorted(shown(cache)) == [f"uid-other{number}" for number in range(8)]


class Replaced(Server):
    """The job was replaced by `there`."""

    there: dict[str, Any] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path.endswith("/trainingjobs") and self.there is not None:
            return web.json_response({"items": [self.there]})
        return await super().answer(request)


def test_the_new_job_found_by_a_get_after_a_conflict_becomes_visible() -> None:
    server = Replaced(refuses=[("PUT", "trainingjobs/llama/status", 409)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness, ages = OperatorHarness(api), [0.0]
        jobs = harness.cache.jobs
        harness.dry_runs.clock = lambda: ages[0]
        jobs._requirements = harness.dry_runs
        harness.submit("llama", 5)
        await until(lambda: shown(harness.cache) == ["uid-llama"])
        server.there = written(900, "new")
        await harness.run_cycle()  # 409: deleted and created again
        ages[0] = 1e6  # the dry-run result is old
        await harness.run_cycle()
        assert jobs.get("new") is not None
        await until(lambda: shown(harness.cache) == ["new"])

    serve(server, scenario)
