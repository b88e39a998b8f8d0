"""Rows of tables, as `muster queues` and `muster nodes` show them, from items of the read API."""

from __future__ import annotations

from typing import Any

from muster.visibility.types import NodeSummary, QueueSummary

_NOT_IN_ROWS = {"api_version", "kind", "metadata", "pending", "pod_count", "pods", "topology", "job_count", "jobs"}


def queue_row(queue: QueueSummary) -> dict[str, Any]:
    """A `muster.tables.QueueTableRow`."""
    fields = queue.model_dump(exclude=_NOT_IN_ROWS)
    return {"name": queue.metadata.name, **fields, "waiting": queue.pending}


def node_row(node: NodeSummary) -> dict[str, Any]:
    """A `muster.tables.NodeTableRow`."""
    fields = node.model_dump(exclude=_NOT_IN_ROWS)
    return {"name": node.metadata.name, **fields, "pods": [pod.name for pod in node.pods]}
