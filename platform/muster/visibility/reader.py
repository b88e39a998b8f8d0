"""Reads lists of the read API to their end, for clients; rows of their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from muster.errors import ClusterError
from muster.visibility.list_types import ItemList, ListResponse
from muster.visibility.types import BASE_PATH, DataSource, Item, NodeSummary, QueueSummary, UsageSummary

T = TypeVar("T", bound=Item)
M = TypeVar("M", bound=BaseModel)
_NOT_IN_ROWS = {"api_version", "kind", "metadata", "pending", "pod_count", "pods", "topology", "job_count", "jobs"}


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All items of a list, and the last page without items."""

    items: list[T]
    last_page: ListResponse

    @property
    def source(self) -> DataSource:
        return self.last_page.source


def decode(model: type[M], answer: Any) -> M:
    """The answer as this type. Raises `ClusterError` WrongVersion for one of another version."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        message = f"the answer is not a {model.__name__} of this version: {error.errors()[0]['msg']}"
        raise ClusterError(message, reason="WrongVersion") from error


def read_list(
    get: Callable[[str], Any],
    plural: str,
    page: type[ItemList],
    namespace: str | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Listing[Any]:
    """All pages. `parameters`: others than those of pages.

    `get` answers the path and query of a URL with decoded JSON. Raises as `get` and `decode` do."""
    prefix = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
    items: list[Any] = []
    query = dict(parameters or {})
    while True:
        found = decode(page, get(f"{BASE_PATH}{prefix}/{plural}{'?' if query else ''}{urlencode(query)}"))
        items += found.items
        if not found.metadata.continue_token:
            return Listing(items, found.model_copy(update={"items": []}))
        query["continue"] = found.metadata.continue_token


def shown_usage(items: Sequence[UsageSummary]) -> list[UsageSummary]:
    """What a table of usage shows: GPUs and the like, largest first; then cpu of names that used nothing else."""
    with_others = {item.metadata.name for item in items if item.resource != "cpu"}
    shown = [item for item in items if item.resource != "cpu" or item.metadata.name not in with_others]
    return sorted(
        shown,
        key=lambda item: (item.resource == "cpu", -item.hours, item.metadata.name, item.flavor, item.resource),
    )


def queue_row(queue: QueueSummary) -> dict[str, Any]:
    """A `muster.tables.QueueTableRow`."""
    fields = queue.model_dump(exclude=_NOT_IN_ROWS)
    return {"name": queue.metadata.name, **fields, "waiting": queue.pending}


def node_row(node: NodeSummary) -> dict[str, Any]:
    """A `muster.tables.NodeTableRow`."""
    fields = node.model_dump(exclude=_NOT_IN_ROWS)
    return {"name": node.metadata.name, **fields, "pods": [pod.name for pod in node.pods]}
