"""Python's cycle collector in processes that plan repeatedly."""

from __future__ import annotations

import gc


def reduce_gc_frequency() -> None:
    """Run Python's cycle collector a hundred times less often than by default; for processes that plan repeatedly.

    A plan creates thousands of small objects without reference cycles, while hundreds of thousands stay (jobs,
    pods, nodes). Traversing all of them takes a considerable part of a plan's time.
    """
    gc.set_threshold(100_000, 20, 20)
