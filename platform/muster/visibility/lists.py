"""Answers a request from a state: one object, or a page of a list, bounded in items and bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from muster.api import spec
from muster.errors import InvalidSpec, NotFound
from muster.usage.report import namespaces_with_usage
from muster.visibility.items import (
    MayRead,
    job_summary,
    node_summaries,
    pending_job,
    queue_summaries,
    usage_list_fields,
    usage_summaries,
)
from muster.visibility.preemptions import preemption_key
from muster.visibility.requests import BAD_REQUEST, PageKey, ReadRequest, encode_token
from muster.visibility.state import ReadState, job_key
from muster.visibility.types import Item, ItemList, PageMeta

MAX_PAGE_BYTES = 4 * 2**20
"""A page ends early at this size; one item may be larger."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An item that may be on the page, which is built only if it is."""

    key: PageKey
    build: Callable[[], Item]


def answer(state: ReadState, request: ReadRequest, may_read: MayRead) -> Item | ItemList:
    """The object, or the page. Items of namespaces that the client may not read are left out. Raises `NotFound` for an
    object that does not exist or may not be read, `InvalidSpec` BadRequest for a `continue` of another resource."""
    if request.name is not None:
        return _one(state, request, may_read)
    entries = _ENTRIES[request.resource.plural](state, request, may_read)
    first = 0
    if request.after is not None:
        try:
            first = bisect_right(entries, request.after, key=lambda entry: entry.key)
        except TypeError as error:
            message = f"continue: must be of a list of {request.resource.plural}; got {request.after!r}"
            raise InvalidSpec(message, field="continue", reason=BAD_REQUEST) from error
    items: list[Item] = []
    size = 0
    for entry in entries[first : first + request.limit]:
        item = entry.build()
        size += len(item.model_dump_json(by_alias=True, exclude_none=True))
        if items and size > MAX_PAGE_BYTES:
            break
        items.append(item)
    last = first + len(items)
    remaining = len(entries) - last
    token = encode_token(entries[last - 1].key) if remaining and items else ""
    meta = PageMeta.model_construct(continue_token=token, remaining_item_count=remaining)
    fields: dict[str, Any] = {"metadata": meta, "source": state.source, "items": items}
    if request.usage is not None:
        fields |= usage_list_fields(state, request.usage)
    return request.resource.page(**fields)


def namespaces_in(state: ReadState, request: ReadRequest) -> set[str]:
    """The namespaces whose items the answer may contain."""
    if request.resource.plural == "queues":
        return set()
    if request.namespace is not None:
        return {request.namespace}
    found = {job_key(job)[0] for job in state.observed.jobs}
    if request.usage is not None:
        found |= namespaces_with_usage(state.recorded_usage, request.usage.period(state.observed.now))
    if request.resource.plural == "preemptions":
        found |= {one.metadata.namespace or "" for one in state.preemptions}
    return found


def _one(state: ReadState, request: ReadRequest, may_read: MayRead) -> Item:
    found: Iterable[Item] = ()
    if request.resource.plural == "queues":
        found = (queue for _, queue in queue_summaries(state))
    elif request.resource.plural == "nodes":
        found = node_summaries(state, may_read)
    elif request.namespace is not None and may_read(request.namespace):
        pending = request.resource.plural == "pendingjobs"
        named = (job for job in state.jobs if job_key(job) == (request.namespace, request.name))
        found = (
            pending_job(state.live(job)) if pending else job_summary(state.live(job), complete=True)
            for job in named
            if not pending or job.status.phase == "Pending"
        )
    for item in found:
        if item.metadata.name == request.name:
            return item
    where = "" if request.namespace is None else f" in namespace {request.namespace!r}"
    raise NotFound(f"{request.resource.noun} {request.name!r} does not exist{where}")


def _queues(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    return [_Entry(key, lambda queue=queue: queue) for key, queue in queue_summaries(state)]  # type: ignore[misc]


def _nodes(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    found = node_summaries(state, may_read)
    return [_Entry((node.metadata.name,), lambda node=node: node) for node in found]  # type: ignore[misc]


def _jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    return [
        _Entry(job_key(job), lambda job=job: job_summary(state.live(job)))  # type: ignore[misc]
        for job in _readable_jobs(state, request, may_read)
    ]


def _pending_jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    return [
        _Entry(job_key(job), lambda job=job: pending_job(state.live(job)))  # type: ignore[misc]
        for job in _readable_jobs(state, request, may_read)
        if job.status.phase == "Pending"
    ]


def _preemptions(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    wanted = dict(request.selector)
    return [
        _Entry(preemption_key(one), lambda one=one: one)  # type: ignore[misc]
        for one in state.preemptions
        if _is_readable(one.metadata.namespace or "", request, may_read) and wanted.get("queue", one.queue) == one.queue
    ]


def _usage(state: ReadState, request: ReadRequest, may_read: MayRead) -> Sequence[_Entry]:
    assert request.usage is not None, "parse_request sets it"
    found = usage_summaries(state, request.usage, lambda namespace: _is_readable(namespace, request, may_read))
    return [
        _Entry((item.metadata.name, item.flavor, item.resource), lambda item=item: item)  # type: ignore[misc]
        for item in found
    ]


def _readable_jobs(state: ReadState, request: ReadRequest, may_read: MayRead) -> Iterable[spec.TrainingJob]:
    wanted = dict(request.selector)
    for job in state.jobs:
        fields: dict[str, Any] = {"queue": job.spec.queue, "phase": job.status.phase}
        if _is_readable(job_key(job)[0], request, may_read) and wanted.items() <= fields.items():
            yield job


def _is_readable(namespace: str, request: ReadRequest, may_read: MayRead) -> bool:
    return request.namespace in (None, namespace) and may_read(namespace)


_ENTRIES: dict[str, Callable[[ReadState, ReadRequest, MayRead], Sequence[_Entry]]] = {
    "queues": _queues,
    "nodes": _nodes,
    "jobs": _jobs,
    "pendingjobs": _pending_jobs,
    "preemptions": _preemptions,
    "usage": _usage,
}
