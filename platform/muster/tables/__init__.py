"""Queues and nodes as rows for people, the same for every cluster: pure, from objects and the newest snapshot.

What the rows mean is told in `muster.cli.connect`.
"""

from __future__ import annotations

from muster.tables.node_rows import node_rows
from muster.tables.queue_rows import queue_rows, waiting_by_queue

__all__ = ["node_rows", "queue_rows", "waiting_by_queue"]
