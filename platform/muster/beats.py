"""What a job says of itself, as the lifecycle wants to know it: from rank 0's heartbeat and the newest durable
checkpoint of a run folder (docs/run-folder.md), wherever they were read.

Programs of users write both, on clocks of their own, and what they say goes into a status: here is decided, once for
all who read them, which numbers and times can be true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from muster.cluster import Beat

FIGURES = ("rank", "world_size", "attempt", "step", "steps", "loss", "tokens_per_s", "step_time_s", "eta_s", "mfu",
           "peak_memory_bytes", "checkpoint_step", "checkpoint_at", "at")  # fmt: skip
"""What a heartbeat tells in numbers."""
PHASES = frozenset({"setup", "compile", "train", "checkpoint", "done"})
"""What it may say that a rank does."""
SKEW_S = 5.0
"""Clocks may differ by so much before it matters: a time further ahead than this is not true."""
_END_OF_TIME = 253_402_300_800.0  # the year 10000: no status can name a time from there on
_MOST = 2**53  # a count that any reader of JSON understands


@dataclass(frozen=True, slots=True)
class Clock:
    """By what times are judged: `now` is ours, `offset_s` what to add to a time of whoever said it."""

    now: float
    offset_s: float = 0.0


def beat_of(
    said: Mapping[str, object], latest: Mapping[str, object], clock: Clock, before: Beat | None = None
) -> Beat | None:
    """From the heartbeat (`said`) and `checkpoints/latest`, times by our clock; the same object as `before` if it says
    the same.

    `latest` is the durable checkpoint; the heartbeat's own word counts where that does not tell. None where neither
    tells anything. What cannot be true is unknown, as `time_of` and `count_of` say; a checkpoint that is dated ahead
    counts from when it was first seen.
    """
    at, step = time_of(said.get("at"), clock), count_of(said.get("step"))
    checkpoint_step = _first(count_of(latest.get("step")), count_of(said.get("checkpoint_step")))
    dated = _first(_by_our_clock(latest.get("at"), clock), _by_our_clock(said.get("checkpoint_at"), clock))
    checkpoint_at = _at_most_now(dated, clock)
    if dated != checkpoint_at and before is not None and before.checkpoint_step == checkpoint_step:
        checkpoint_at = _first(before.checkpoint_at, checkpoint_at)
    if at is None and checkpoint_at is None:
        return None
    at = at if at is not None else checkpoint_at or 0.0
    step = step if step is not None else checkpoint_step or 0
    beat = Beat(
        at=at,
        step=step,
        step_at=before.step_at if before is not None and before.step == step else at,
        checkpoint_step=checkpoint_step,
        checkpoint_at=checkpoint_at,
        steps=count_of(said.get("steps")),
        loss=number(said.get("loss")),
        tokens_per_s=number(said.get("tokens_per_s")),
    )
    return before if beat == before else beat


def number(value: object) -> float | None:
    """A finite number; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def count_of(value: object) -> int | None:
    """A count that can be written down; None for everything else."""
    count = number(value)
    return int(count) if count is not None and 0 <= count <= _MOST else None


def time_of(value: object, clock: Clock) -> float | None:
    """Unix seconds by our clock. Milliseconds, times before 1970 and what is no number are unknown (None); a time ahead
    of now by more than `SKEW_S` is now, so that the true times after it are later."""
    return _at_most_now(_by_our_clock(value, clock), clock)


def _by_our_clock(value: object, clock: Clock) -> float | None:
    at = number(value)
    return at + clock.offset_s if at is not None and at + clock.offset_s >= 0 and at < _END_OF_TIME else None


def _at_most_now(at: float | None, clock: Clock) -> float | None:
    return at if at is None or at <= clock.now + SKEW_S else clock.now


_Number = TypeVar("_Number", int, float)


def _first(one: _Number | None, other: _Number | None) -> _Number | None:
    return other if one is None else one
