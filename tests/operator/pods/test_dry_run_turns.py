"""Dry runs of a namespace with many templates leave those of others their turn."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, read, template

from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster_operator.cache.cached_job import CachedJob, DryRunResult
from muster_operator.dry_run import DryRuns, PodTemplateReader
from muster_operator.pod_builder.pods import PodConfig


def test_a_namespace_with_many_templates_does_not_delay_the_dry_runs_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that the API server rejects are tried again every few seconds."""
    cache, _ = new_cache()
    for number in range(200):
        namespace = "quiet" if number == 199 else "loud"
        document = job_document(f"j{number}", number + 1)
        document["metadata"]["namespace"] = namespace
        document["spec"]["roles"][0]["template"] = template(nodeSelector={"number": str(number)})
        cache.jobs.on_upsert(read(RawCustomObject, document))
    order: list[str] = []

    async def run_once(dry_runs: DryRuns, job: CachedJob, role: str) -> DryRunResult:
        await asyncio.sleep(0)
        order.append(job.namespace)
        return DryRunResult(rejection="no")

    monkeypatch.setattr(DryRuns, "_run_once", run_once)

    async def scenario() -> None:
        api = cast(AsyncKubeClient, None)
        dry_runs = DryRuns(api, PodConfig(), PodTemplateReader(api, cache.templates))
        for job in cache.jobs.all():
            dry_runs.request(job, lambda namespace, digest: None)
        in_progress: Any = dry_runs._in_progress
        await asyncio.gather(*in_progress.values())
        assert not dry_runs._slots_of

    asyncio.run(scenario())
    assert len(order) == 200
    assert order.index("quiet") < 20
