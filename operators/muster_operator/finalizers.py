"""Queues stay until no unfinished job names them: a finalizer, put on when a queue is first seen."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from muster import spec
from muster.lifecycle import is_finished
from muster_operator.kube.api import Api, ApiError
from muster_operator.kube.resources import QUEUES
from muster_operator.labels import IN_USE
from muster_operator.refusals import Refusals, concerns_everybody
from muster_operator.sight.documents import Documents
from muster_operator.sight.jobs import Jobs
from muster_operator.sight.written import written


def wanted(queue: spec.Queue, named: AbstractSet[str]) -> list[str] | None:
    """The finalizers the queue should have, if others than it has. `named` are queues that unfinished jobs name."""
    meta = queue.metadata
    if meta.deletion_timestamp is None:
        return None if IN_USE in meta.finalizers else [*meta.finalizers, IN_USE]
    if IN_USE not in meta.finalizers or meta.name in named:
        return None
    return [one for one in meta.finalizers if one != IN_USE]


def named_by(jobs: Jobs) -> set[str]:
    """Queues that unfinished jobs name, those included that are not shown yet or cannot be read."""
    named = {known.job.spec.queue for known in jobs.all() if not is_finished(known.job.status)}
    for one in jobs.broken.values():
        status = jobs.status_of(one)
        if status is None or not is_finished(status):
            named.add(one.queue)
    return named


async def settle(api: Api, queues: Documents[spec.Queue], jobs: Jobs, refusals: Refusals) -> None:
    """Put the finalizer on queues that lack it, and take it off those that may go. Raises ClusterError for what is no
    single queue's trouble."""
    every = queues.all()
    leaving = any(queue.metadata.deletion_timestamp is not None for queue in every)
    named = named_by(jobs) if leaving else set[str]()
    for queue in every:
        finalizers = wanted(queue, named)
        meta, path = queue.metadata, QUEUES.path(None, queue.metadata.name)
        if finalizers is None or not refusals.may_try(path):
            continue
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}}
        try:
            answer = await api.patch(path, msgspec.json.encode(patch))
        except ApiError as error:
            if concerns_everybody(error):
                raise
            if error.code not in (404, 409):  # else it changed meanwhile, and the watch wakes us
                refusals.write_refused(path, error)
            continue
        refusals.over(path)
        if meta.deletion_timestamp is None:
            queues.wrote(meta.name, written(answer).version, {"finalizers": finalizers})
