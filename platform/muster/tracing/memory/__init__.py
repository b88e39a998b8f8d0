"""GPU memory: who holds it, when it peaks, and what would reduce it, from snapshots of torch's CUDA allocator.

`read.restricted_pickle` reads a snapshot safely and `snapshot` decodes it. `lifetimes` reconstructs which
allocations were in use at which time, `categories` says what each is for, `usage` and `allocator` derive the figures
(docs/concepts/memory.md), and `memory_report` compares ranks and runs.
"""

from __future__ import annotations

from muster.tracing.memory.advice import Advice, describe_advice
from muster.tracing.memory.memory_report import MemoryReport, analyse_memory
from muster.tracing.memory.rank_memory import RankMemory
from muster.tracing.read.restricted_pickle import MemoryLimits

__all__ = [
    "Advice",
    "MemoryLimits",
    "MemoryReport",
    "RankMemory",
    "analyse_memory",
    "describe_advice",
]
