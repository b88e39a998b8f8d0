"""GPU memory: who holds it, when it peaks, and what would reduce it, from snapshots of torch's CUDA allocator.

`muster.tracing.restricted_pickle` reads a snapshot safely and `snapshot` decodes it. `lifetimes` reconstructs which
allocations were in use at which time, `categories` says what each is for, `usage` and `allocator` derive the figures
(docs/memory.md), and `memory_report` compares ranks and runs.
"""

from __future__ import annotations

from muster.tracing.memory.advice import Advice, AdviceKind, describe_advice
from muster.tracing.memory.categories import Category
from muster.tracing.memory.memory_report import MemoryReport, analyse_memory
from muster.tracing.memory.rank_memory import RankMemory
from muster.tracing.restricted_pickle import DEFAULT_MEMORY_LIMITS, MemoryLimits

__all__ = [
    "DEFAULT_MEMORY_LIMITS",
    "Advice",
    "AdviceKind",
    "Category",
    "MemoryLimits",
    "MemoryReport",
    "RankMemory",
    "analyse_memory",
    "describe_advice",
]
