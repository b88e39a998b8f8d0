"""The finalizers of queues, which keep a deleted queue as long as it is in use."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import msgspec

from muster.api import spec
from muster.kube.resources import QUEUES
from muster.state.projection import AllowedNamespaces, queues_in_use
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.objects import job_of
from muster_operator.writes.queue import WriteQueue

IN_USE = "muster.dev/in-use"
"""Finalizer of a Queue that unfinished jobs may name."""


def desired_finalizers(queue: spec.Queue, in_use: AbstractSet[str]) -> list[str] | None:
    """The finalizers to write, None if unchanged. `in_use`: queues that jobs keep."""
    meta = queue.metadata
    if meta.deletion_timestamp is None:
        return None if IN_USE in meta.finalizers else [*meta.finalizers, IN_USE]
    if IN_USE not in meta.finalizers or meta.name in in_use:
        return None
    return [one for one in meta.finalizers if one != IN_USE]


def used_queues(cache: ClusterCache, allowed: Mapping[tuple[str, str], bool]) -> set[str]:
    """`queues_in_use`, including jobs that are not visible or cannot be read, and objects of other kinds that are gone
    or have lost the label, while pods of them are left."""
    jobs = cache.jobs
    uses = [(known.queue, known.namespace, known.status) for known in cache.workloads()]
    left = {one.spec.queue for one in cache.objects.without_object() if cache.pods.are_left(job_of(one))}
    invalid = [(one, jobs.status_of(one)) for one in jobs.invalid.values()]
    uses += [(one.queue, one.metadata.namespace or "default", status) for one, status in invalid if status is not None]
    return queues_in_use(uses, allowed) | left | {one.queue for one, status in invalid if status is None}


async def reconcile_finalizers(cache: ClusterCache, writes: WriteQueue) -> None:
    """Add the finalizer where it is missing, and remove it from deleted queues that are not in use. Raises ClusterError
    for errors that affect all objects."""
    queues, every = cache.queues, cache.queues.all()
    deleting = any(queue.metadata.deletion_timestamp is not None for queue in every)
    named = set[str]()
    if deleting:
        named = used_queues(cache, AllowedNamespaces(every, cache.namespaces.values()))
    for queue in every:
        finalizers = desired_finalizers(queue, named)
        if finalizers is None:
            continue
        meta = queue.metadata
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}}
        written = await writes.patch(QUEUES.path(None, meta.name), msgspec.json.encode(patch))
        if written is not None and meta.deletion_timestamp is None:
            queues.on_written(meta.name, written.version, {"finalizers": finalizers})
