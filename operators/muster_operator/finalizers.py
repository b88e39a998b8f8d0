"""The finalizer of queues, which keeps a queue as long as unfinished jobs name it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from muster.api import spec
from muster.kube.resources import QUEUES
from muster.lifecycle import is_finished
from muster_operator.cache.custom_objects import CustomObjectCache
from muster_operator.cache.jobs import JobCache
from muster_operator.write_queue import WriteQueue

IN_USE = "muster.dev/in-use"
"""Finalizer of a Queue that unfinished jobs may name."""


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


async def reconcile_finalizers(queues: CustomObjectCache[spec.Queue], jobs: JobCache, writes: WriteQueue) -> None:
    """Add the finalizer where it is missing, and remove it from deleted queues that are not in use. Raises ClusterError
    for errors that affect all objects."""
    every = queues.all()
    leaving = any(queue.metadata.deletion_timestamp is not None for queue in every)
    named = queues_in_use(jobs) if leaving else set[str]()
    for queue in every:
        finalizers = desired_finalizers(queue, named)
        if finalizers is None:
            continue
        meta = queue.metadata
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}}
        written = await writes.patch(QUEUES.path(None, meta.name), msgspec.json.encode(patch))
        if written is not None and meta.deletion_timestamp is None:
            queues.on_written(meta.name, written.version, {"finalizers": finalizers})
