"""How many processes read traces at the same time."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, or all where there is none (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
