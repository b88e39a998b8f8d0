"""Deletes the Workloads of objects that are gone, once no pod of them is left.

A Workload has no owner: the garbage collector would delete it with its object, while pods still terminate and have to
be charged to its queue, also by another operator.
"""

from __future__ import annotations

import msgspec

from muster.kube.resources import WORKLOADS
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.objects import job_of
from muster_operator.writes.queue import WriteQueue


async def delete_left_workloads(cache: ClusterCache, writes: WriteQueue) -> None:
    """Delete them. Raises ClusterError for errors that affect all objects."""
    for stored in cache.objects.without_object():
        if cache.pods.are_left(job_of(stored)):
            continue
        meta = stored.metadata
        options = {"preconditions": {"uid": meta.uid}} if meta.uid else {}
        path = WORKLOADS.path(meta.namespace, meta.name)
        if await writes.delete(path, msgspec.json.encode(options)):
            cache.objects.statuses.on_removed(stored)
