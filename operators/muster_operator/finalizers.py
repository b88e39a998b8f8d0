"""The finalizer of queues, which keeps a queue as long as unfinished jobs name it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from muster import spec
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.resources import QUEUES
from muster.lifecycle import is_finished
from muster_operator.cache.custom_objects import CustomObjectCache
from muster_operator.cache.jobs import JobCache
from muster_operator.cache.write_response import written_metadata
from muster_operator.labels import IN_USE
from muster_operator.retry_limiter import RetryLimiter, is_server_wide


def desired_finalizers(queue: spec.Queue, in_use: AbstractSet[str]) -> list[str] | None:
    """The finalizers to write, None if unchanged. `in_use`: queues that unfinished jobs name."""
    meta = queue.metadata
    if meta.deletion_timestamp is None:
        return None if IN_USE in meta.finalizers else [*meta.finalizers, IN_USE]
    if IN_USE not in meta.finalizers or meta.name in in_use:
        return None
    return [one for one in meta.finalizers if one != IN_USE]


def queues_in_use(jobs: JobCache) -> set[str]:
    """Queues that unfinished jobs name, including jobs that are not visible or cannot be read."""
    named = {known.job.spec.queue for known in jobs.all() if not is_finished(known.job.status)}
    for one in jobs.invalid.values():
        status = jobs.status_of(one)
        if status is None or not is_finished(status):
            named.add(one.queue)
    return named


async def reconcile_finalizers(
    api: AsyncKubeClient, queues: CustomObjectCache[spec.Queue], jobs: JobCache, retry_limiter: RetryLimiter
) -> None:
    """Add the finalizer where it is missing, and remove it from deleted queues that are not in use. Raises ClusterError
    for errors that affect all objects."""
    every = queues.all()
    leaving = any(queue.metadata.deletion_timestamp is not None for queue in every)
    named = queues_in_use(jobs) if leaving else set[str]()
    for queue in every:
        finalizers = desired_finalizers(queue, named)
        meta, path = queue.metadata, QUEUES.path(None, queue.metadata.name)
        if finalizers is None or not retry_limiter.may_retry(path):
            continue
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}}
        try:
            answer = await api.patch(path, msgspec.json.encode(patch))
        except ApiError as error:
            if is_server_wide(error):
                raise
            if error.code not in (404, 409):  # else it changed meanwhile, and its event starts the next cycle
                retry_limiter.record_write_failure(path, error)
            continue
        retry_limiter.reset(path)
        if meta.deletion_timestamp is None:
            queues.on_written(meta.name, written_metadata(answer).version, {"finalizers": finalizers})
