"""Queues stay until no unfinished job names them: a finalizer, put on when a queue is first seen."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from muster import spec
from muster.lifecycle import is_finished
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import QUEUES
from muster_operator.labels import IN_USE
from muster_operator.sight.documents import Documents
from muster_operator.sight.shapes import Namespace

_LOG = logging.getLogger("muster.operator")


def wanted(queue: spec.Queue, named: frozenset[str]) -> list[str] | None:
    """The finalizers the queue should have, if others than it has. `named` are queues that unfinished jobs name."""
    meta = queue.metadata
    if meta.deletion_timestamp is None:
        return None if IN_USE in meta.finalizers else [*meta.finalizers, IN_USE]
    if IN_USE not in meta.finalizers or meta.name in named:
        return None
    return [one for one in meta.finalizers if one != IN_USE]


async def settle(api: Api, queues: Documents[spec.Queue], jobs: Iterable[spec.TrainingJob]) -> None:
    """Put the finalizer on queues that lack it, and take it off those that may go. Raises ClusterError."""
    every = queues.all()
    leaving = any(queue.metadata.deletion_timestamp is not None for queue in every)
    named = frozenset(job.spec.queue for job in jobs if not is_finished(job.status)) if leaving else frozenset[str]()
    for queue in every:
        finalizers = wanted(queue, named)
        if finalizers is None:
            continue
        meta = queue.metadata
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}}
        try:
            answer = await api.patch(QUEUES.path(None, meta.name), msgspec.json.encode(patch))
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            continue  # it changed meanwhile; the watch wakes us
        if meta.deletion_timestamp is None:
            version = msgspec.json.decode(answer, type=Namespace).metadata.version
            queues.wrote(meta.name, version, {"finalizers": finalizers})
