"""The account of a job's time as a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from muster.text import format_duration, pluralize
from muster.usage.causes import LOST, PRODUCTIVE, RUNNING, UNKNOWN
from muster.usage.goodput import by_main_cause

_SMALL = 0.005
"""Causes below this part of the whole are not named."""


def goodput_sentence(milliseconds: Mapping[str, int], restarts: int) -> str:
    """`of 5h12m 88% productive, 4% waiting, 2% start; 22m lost in 2 restarts`; empty without time, and where all is
    unknown, as of arrays. `restarts`: all attempts but the first, for whatever reason."""
    sums = by_main_cause(milliseconds)
    whole = sum(sums.values())
    if sums.get(UNKNOWN, 0) == whole:
        return ""
    shares = sorted(
        ((amount, cause) for cause, amount in sums.items() if cause not in (PRODUCTIVE, LOST)), reverse=True
    )
    parts = [f"{sums.get(PRODUCTIVE, 0) / whole:.0%} productive"] if RUNNING not in sums or PRODUCTIVE in sums else []
    parts += [f"{amount / whole:.0%} {cause}" for amount, cause in shares if amount / whole >= _SMALL]
    lost = sums.get(LOST, 0) / 1000
    counted = f" in {pluralize(restarts, 'restart')}" if restarts else ""
    done_again = f"; {format_duration(lost)} of steps done again{counted}" if lost else ""
    return f"of {format_duration(whole / 1000)} {', '.join(parts)}{done_again}"
