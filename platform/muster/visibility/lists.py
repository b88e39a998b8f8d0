"""Answers a request from a state: one object, or a page of a list, bounded in items and bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api import spec
from muster.errors import NotFound
from muster.heartbeats.parse import StepPoint
from muster.routes import bad_parameter
from muster.usage.report import namespaces_with_usage
from muster.visibility.items import (
    MayRead,
    node_summaries,
    preemption_key,
    queue_summaries,
    usage_list_fields,
    usage_summaries,
)
from muster.visibility.jobs import ReadableJob, job_key, job_meta, job_summary, pending_job
from muster.visibility.list_types import ItemList
from muster.visibility.requests import CURVES, PageKey, ReadRequest, encode_token
from muster.visibility.state import ReadState
from muster.visibility.types import CurvePoint, Item, JobCurve, PageMeta

MAX_PAGE_BYTES = 4 * 2**20
"""A page ends early at this size; one item may be larger."""


@dataclass(frozen=True, slots=True)
class _Matches:
    """What may be on the page, in the order of `key`. `build` is called only for what is."""

    found: Sequence[Any]
    key: Callable[[Any], PageKey]
    build: Callable[[Any], Item]


def answer(state: ReadState, request: ReadRequest, may_read: MayRead) -> Item | ItemList:
    """The object, or the page; of all resources but curves. Items of namespaces that the client may not read are left
    out. Raises `NotFound` for an object that does not exist or may not be read, `InvalidSpec` BadRequest for a
    `continue` of another resource."""
    if request.name is not None:
        return _one(state, request, may_read)
    matches = _MATCHES[request.resource.plural](state, request, may_read)
    first = 0
    if request.after is not None:
        if matches.found and not _are_alike(request.after, matches.key(matches.found[0])):
            same = " with the same sort" if request.resource.plural in ("jobs", "pendingjobs") else ""
            message = f"must be of a list of {request.resource.plural}{same}; got {request.after!r}"
            raise bad_parameter("continue", message)
        first = bisect_right(matches.found, request.after, key=matches.key)
    items: list[Item] = []
    size = 0
    for one in matches.found[first : first + request.limit]:
        item = matches.build(one)
        size += len(item.model_dump_json(by_alias=True, exclude_none=True))
        if items and size > MAX_PAGE_BYTES:
            break
        items.append(item)
    last = first + len(items)
    remaining = len(matches.found) - last
    token = encode_token(matches.key(matches.found[last - 1])) if remaining and items else ""
    meta = PageMeta.model_construct(continue_token=token, remaining_item_count=remaining)
    fields: dict[str, Any] = {"metadata": meta, "source": state.source, "items": items}
    if request.usage is not None:
        fields |= usage_list_fields(state, request.usage)
    assert request.resource.page is not None, "parse_request refuses lists of others"
    return request.resource.page(**fields)


def _are_alike(one: PageKey, other: PageKey) -> bool:
    """Whether both are keys of one list and order, which have the same types."""
    return [isinstance(part, str) for part in one] == [isinstance(part, str) for part in other]


def namespaces_in(state: ReadState, request: ReadRequest) -> set[str]:
    """The namespaces whose items the answer may contain."""
    if request.resource.plural == "queues":
        return set()
    if request.namespace is not None:
        return {request.namespace}
    found = set(state.jobs_by_namespace)
    if request.usage is not None:
        found |= namespaces_with_usage(state.recorded_usage, request.usage.period(state.observed.now))
    if request.resource.plural == "preemptions":
        found |= {one.metadata.namespace or "" for one in state.preemptions}
    return found


def _one(state: ReadState, request: ReadRequest, may_read: MayRead) -> Item:
    assert request.resource.plural != CURVES, "the state has no curves: see job_curve"
    found: Iterable[Item] = ()
    if request.resource.plural == "queues":
        found = (queue for _, queue in queue_summaries(state))
    elif request.resource.plural == "nodes":
        found = node_summaries(state, may_read)
    else:
        pending = request.resource.plural == "pendingjobs"
        found = (
            pending_job(state.live(job)) if pending else job_summary(state.live(job), complete=True)
            for job in _named_jobs(state, request, may_read)
            if not pending or job.status.phase == "Pending"
        )
    for item in found:
        if item.metadata.name == request.name:
            return item
    raise _not_found(request)


def requested_job(state: ReadState, request: ReadRequest, may_read: MayRead) -> spec.TrainingJob:
    """The TrainingJob that a request names. Raises `NotFound` as `answer` does."""
    for job in _named_jobs(state, request, may_read):
        if job.training_job is not None:
            return job.training_job
    raise _not_found(request)


def job_curve(job: spec.TrainingJob, points: Sequence[StepPoint]) -> JobCurve:
    """The answer to a request for a job's curve."""
    found = [CurvePoint(step=step, loss=loss, step_seconds=seconds) for step, loss, seconds in points]
    return JobCurve(metadata=job_meta(job), points=found)


def _named_jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> Iterator[ReadableJob]:
    if request.namespace is not None and may_read(request.namespace):
        named = (job for job in state.jobs_by_namespace.get(request.namespace, ()) if job.metadata.name == request.name)
        yield from sorted(named, key=lambda job: job.training_job is None)


def _not_found(request: ReadRequest) -> NotFound:
    where = "" if request.namespace is None else f" in namespace {request.namespace!r}"
    return NotFound(f"{request.resource.noun} {request.name!r} does not exist{where}")


def _queues(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    return _Matches(queue_summaries(state), lambda found: found[0], lambda found: found[1])


def _nodes(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    return _Matches([*node_summaries(state, may_read)], lambda node: (node.metadata.name,), _as_it_is)


def _jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    found = _readable_jobs(state, request, may_read)

    def by_start(job: ReadableJob) -> PageKey:
        start = state.estimated_start(job)
        return (_LAST if start is None else start, *_unique_key(job))

    key = by_start if request.sort == "start" else _JOB_KEYS[request.sort]
    if request.sort != "name":
        found = sorted(found, key=key)
    return _Matches(found, key, lambda job: job_summary(state.live(job)))


def _unique_key(job: ReadableJob) -> tuple[str, str, str]:
    """Objects of several kinds may have one name."""
    return *job_key(job), job.kind


def _newest_first(job: ReadableJob) -> PageKey:
    return (-float(job.metadata.creation_timestamp or job.status.submitted_at or 0.0), *_unique_key(job))


def _running_first(job: ReadableJob) -> PageKey:
    phase = job.status.phase
    return (
        float(_PHASE_ORDER.index(phase)) if phase in _PHASE_ORDER else float(len(_PHASE_ORDER)),
        *_newest_first(job),
    )


def _with_nodes_first(job: ReadableJob) -> PageKey:
    status = job.status
    # Also of one that has Succeeded or Failed, until its last process has ended.
    has_nodes = status.finished_at is None and status.phase not in _PHASES_WITHOUT_NODES
    return (-_LAST if has_nodes else _LAST if status.finished_at is None else -status.finished_at, *_unique_key(job))


_LAST = 1e18  # after each position and time; JSON has no infinity
_PHASES_WITHOUT_NODES = ("Pending", "Suspended")
_PHASE_ORDER = ("Running", "Terminating", "Admitted", *_PHASES_WITHOUT_NODES)  # then those that have ended
_JOB_KEYS: Mapping[str, Callable[[ReadableJob], PageKey]] = {
    "name": _unique_key, "created": _newest_first, "state": _running_first, "recent": _with_nodes_first,
}  # fmt: skip


def _pending_jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    found = [job for job in _readable_jobs(state, request, may_read) if job.status.phase == "Pending"]
    if request.sort == "name":
        return _Matches(found, _unique_key, lambda job: pending_job(state.live(job)))

    def by_position(job: ReadableJob) -> PageKey:
        position = state.position(job)
        return (_LAST if position is None else float(position), *_unique_key(job))

    return _Matches(sorted(found, key=by_position), by_position, lambda job: pending_job(state.live(job)))


def _preemptions(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    wanted = dict(request.selector)
    found = [
        one
        for one in state.preemptions
        if _is_readable(one.metadata.namespace or "", request, may_read) and wanted.get("queue", one.queue) == one.queue
    ]
    return _Matches(found, preemption_key, _as_it_is)


def _usage(state: ReadState, request: ReadRequest, may_read: MayRead) -> _Matches:
    assert request.usage is not None, "parse_request sets it"
    found = usage_summaries(state, request.usage, lambda namespace: _is_readable(namespace, request, may_read))
    return _Matches(found, lambda item: (item.metadata.name, item.flavor, item.resource), _as_it_is)


def _as_it_is(item: Item) -> Item:
    return item


def _readable_jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[ReadableJob]:
    by_namespace = state.jobs_by_namespace
    readable = (jobs for name, jobs in by_namespace.items() if _is_readable(name, request, may_read))
    found = [job for jobs in readable for job in jobs]
    wanted = dict(request.selector)
    if (queue := wanted.get("queue")) is not None:
        found = [job for job in found if job.queue == queue]
    if (phase := wanted.get("phase")) is not None:
        found = [job for job in found if job.status.phase == phase]
    return found


def _is_readable(namespace: str, request: ReadRequest, may_read: MayRead) -> bool:
    return request.namespace in (None, namespace) and may_read(namespace)


_MATCHES: dict[str, Callable[[ReadState, ReadRequest, MayRead], _Matches]] = {
    "queues": _queues,
    "nodes": _nodes,
    "jobs": _jobs,
    "pendingjobs": _pending_jobs,
    "preemptions": _preemptions,
    "usage": _usage,
}
