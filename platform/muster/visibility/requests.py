"""Parses routes of the read API: BASE_PATH/[namespaces/NAMESPACE/]RESOURCE[/NAME], with Kubernetes' parameters."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote

from muster.errors import NotFound
from muster.routes import UNKNOWN_ROUTE, bad_parameter, query_values, split_url
from muster.visibility.list_types import (
    ItemList,
    JobSummaryList,
    NodeSummaryList,
    PendingJobList,
    PreemptionList,
    QueueSummaryList,
    UsageSummaryList,
)
from muster.visibility.types import (
    BASE_PATH,
    Item,
    JobCurve,
    JobSummary,
    NodeSummary,
    PendingJob,
    Preemption,
    QueueSummary,
    UsageSummary,
)
from muster.visibility.usage import USAGE_PARAMETERS, UsageQuery, parse_usage_query

MAX_LIMIT = 500
CURVES = "curves"
_IGNORED = ("timeout", "pretty", "resourceVersion", "resourceVersionMatch", "labelSelector", "watch")

JobOrder: TypeAlias = Literal["name", "created", "state", "recent", "start"]
PendingJobOrder: TypeAlias = Literal["name", "position"]
JOB_ORDERS: tuple[JobOrder, ...] = get_args(JobOrder)
"""Values of `sort`: by namespace and name; the newest first; running jobs first, of a state the newest first; jobs with
nodes first, then those that ended last; by estimated start, those without one last."""
PENDING_JOB_ORDERS: tuple[PendingJobOrder, ...] = get_args(PendingJobOrder)
"""The same of pending jobs: by namespace and name; by position in their queue, those without one last."""
_ORDERS: dict[str, tuple[str, ...]] = {"jobs": JOB_ORDERS, "pendingjobs": PENDING_JOB_ORDERS}

PageKey: TypeAlias = tuple[str | float, ...]
"""What lists are ordered by: unique, and never that of another object."""


@dataclass(frozen=True, slots=True)
class ReadableResource:
    """A collection. `noun`: what messages call one item. `selectable`: fields that a fieldSelector may name.
    `readable`: whether one item can be read by name. `page`: None if there is no list."""

    plural: str
    noun: str
    item: type[Item]
    page: type[ItemList] | None
    namespaced: bool = True
    selectable: tuple[str, ...] = ()
    readable: bool = True


RESOURCES = {
    resource.plural: resource
    for resource in (
        ReadableResource("queues", "queue", QueueSummary, QueueSummaryList, namespaced=False),
        ReadableResource("nodes", "node", NodeSummary, NodeSummaryList, namespaced=False),
        ReadableResource("jobs", "job", JobSummary, JobSummaryList, selectable=("queue", "phase")),
        ReadableResource(CURVES, "job", JobCurve, None),
        ReadableResource("pendingjobs", "pending job", PendingJob, PendingJobList, selectable=("queue",)),
        ReadableResource(
            "preemptions", "preemption", Preemption, PreemptionList, selectable=("queue",), readable=False
        ),
        ReadableResource("usage", "usage", UsageSummary, UsageSummaryList, readable=False),
    )
}


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One call: a list, or with `name` one object. `namespace` None: all namespaces. `after`: the last key of the page
    before. `selector`: values by field. `usage`: of a list of usage. `sort`: one of the orders of the resource."""

    resource: ReadableResource
    namespace: str | None = None
    name: str | None = None
    limit: int = MAX_LIMIT
    after: PageKey | None = None
    selector: tuple[tuple[str, str], ...] = ()
    usage: UsageQuery | None = None
    sort: str = "name"


def parse_request(target: str) -> ReadRequest:
    """The call of a URL's path and query. Raises `NotFound` for an unknown route, `InvalidSpec` BadRequest for an
    invalid parameter."""
    url = split_url(target)
    namespace: str | None = None
    rest = [unquote(part) for part in url.path.removeprefix(BASE_PATH).split("/") if part]
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource = RESOURCES.get(rest[0]) if rest else None
    name = rest[1] if len(rest) == 2 else None
    invalid = not url.path.startswith(f"{BASE_PATH}/") or resource is None or len(rest) > 2
    if invalid or resource is None or (namespace is not None and not resource.namespaced):
        raise _no_route(url.path)
    if name is None and resource.page is None:
        raise _no_route(url.path)
    if name is not None and (resource.namespaced != (namespace is not None) or not resource.readable):
        raise _no_route(url.path)
    is_usage = resource.plural == "usage"
    more = USAGE_PARAMETERS if is_usage else ("sort",) if resource.plural in _ORDERS else ()
    valid = ("limit", "continue", "fieldSelector", *more)
    values_by_name = query_values(url.query, valid, _IGNORED)
    if values_by_name.get("labelSelector"):
        raise bad_parameter("labelSelector", "must be empty: items have no labels; use fieldSelector")
    if values_by_name.get("watch", "false") not in ("", "0", "false"):
        raise bad_parameter("watch", "must be false: lists cannot be watched; get them again")
    return ReadRequest(
        resource,
        namespace,
        name,
        _parse_limit(values_by_name.get("limit", "")),
        decode_token(values_by_name["continue"]) if values_by_name.get("continue") else None,
        tuple(_parse_selector(resource, values_by_name.get("fieldSelector", ""))),
        parse_usage_query(values_by_name) if is_usage else None,
        _parse_sort(values_by_name.get("sort") or "name", _ORDERS.get(resource.plural, ("name",))),
    )


def encode_token(key: PageKey) -> str:
    """The value of `continue` for the page after this key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def decode_token(token: str) -> PageKey:
    """The key in a value of `continue`. Raises `InvalidSpec` BadRequest."""
    try:
        key = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error, RecursionError):
        key = None
    if not isinstance(key, list) or not all(isinstance(part, str | float) for part in key):
        raise bad_parameter("continue", f"must be the value of an earlier page; got {token[:80]!r}")
    return tuple(key)


def _parse_limit(text: str) -> int:
    """`limit`; without one, with 0 or with a larger one: MAX_LIMIT."""
    if text and not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise bad_parameter("limit", f"must be an integer of at least 0; got {text[:80]!r}")
    return min(int(text or "0") or MAX_LIMIT, MAX_LIMIT)


def _parse_sort(text: str, valid: tuple[str, ...]) -> str:
    if text not in valid:
        raise bad_parameter("sort", f"must be one of {', '.join(valid)}; got {text[:80]!r}")
    return text


def _parse_selector(resource: ReadableResource, text: str) -> list[tuple[str, str]]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found: list[tuple[str, str]] = []
    for part in parts:
        field, equals, value = part.partition("=")
        if not equals or field not in resource.selectable:
            valid = ", ".join(f"{name}=VALUE" for name in resource.selectable) or "none"
            raise bad_parameter("fieldSelector", f"must be one of these, with commas: {valid}; got {part[:80]!r}")
        found.append((field, value.removeprefix("=")))
    return found


def _no_route(path: str) -> NotFound:
    return NotFound(f"there is no {path[:200]}; resources: {', '.join(RESOURCES)}", reason=UNKNOWN_ROUTE)
