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

from muster.cluster import Heartbeat

NUMERIC_FIELDS = (
    "rank", "world_size", "attempt", "step", "steps", "loss", "tokens_per_s", "step_time_s", "eta_s", "mfu",
    "peak_memory_bytes", "checkpoint_step", "checkpoint_at", "at",
)  # fmt: skip
"""What a heartbeat tells in numbers."""
PHASES = frozenset({"setup", "compile", "train", "checkpoint", "done"})
"""What it may say that a rank does."""
MAX_CLOCK_SKEW_S = 5.0
"""Clocks may differ by so much before it matters: a time further ahead than this is not true."""
_MAX_TIMESTAMP = 253_402_300_800.0  # the year 10000: no status can name a time from there on
_MAX_COUNT = 2**53  # a count that any reader of JSON understands


@dataclass(frozen=True, slots=True)
class ClockReading:
    """By what times are judged: `now` is ours, `offset_s` what to add to a time of whoever said it."""

    now: float
    offset_s: float = 0.0


def parse_heartbeat(
    reported: Mapping[str, object],
    latest_checkpoint: Mapping[str, object],
    clock: ClockReading,
    previous: Heartbeat | None = None,
) -> Heartbeat | None:
    """From the heartbeat (`said`) and `checkpoints/latest`, times by our clock; the same object as `before` if it says
    the same.

    `latest` is the durable checkpoint; the heartbeat's own word counts where that does not tell. None where neither
    tells anything. What cannot be true is unknown, as `time_of` and `count_of` say; a checkpoint that is dated ahead
    counts from when it was first seen.
    """
    at, step = parse_time(reported.get("at"), clock), parse_count(reported.get("step"))
    checkpoint_step = _first_known(
        parse_count(latest_checkpoint.get("step")), parse_count(reported.get("checkpoint_step"))
    )
    dated = _first_known(
        _to_local_clock(latest_checkpoint.get("at"), clock), _to_local_clock(reported.get("checkpoint_at"), clock)
    )
    checkpoint_at = _clamp_to_now(dated, clock)
    if dated != checkpoint_at and previous is not None and previous.checkpoint_step == checkpoint_step:
        checkpoint_at = _first_known(previous.checkpoint_at, checkpoint_at)
    if at is None and checkpoint_at is None:
        return None
    at = at if at is not None else checkpoint_at or 0.0
    step = step if step is not None else checkpoint_step or 0
    beat = Heartbeat(
        at=at,
        step=step,
        step_changed_at=previous.step_changed_at if previous is not None and previous.step == step else at,
        checkpoint_step=checkpoint_step,
        checkpoint_at=checkpoint_at,
        total_steps=parse_count(reported.get("steps")),
        loss=finite_number(reported.get("loss")),
        tokens_per_s=finite_number(reported.get("tokens_per_s")),
    )
    return previous if beat == previous else beat


def finite_number(value: object) -> float | None:
    """A finite number; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def parse_count(value: object) -> int | None:
    """A count that can be written down; None for everything else."""
    count = finite_number(value)
    return int(count) if count is not None and 0 <= count <= _MAX_COUNT else None


def parse_time(value: object, clock: ClockReading) -> float | None:
    """Unix seconds by our clock. Milliseconds, times before 1970 and what is no number are unknown (None); a time ahead
    of now by more than `SKEW_S` is now, so that the true times after it are later."""
    return _clamp_to_now(_to_local_clock(value, clock), clock)


def _to_local_clock(value: object, clock: ClockReading) -> float | None:
    at = finite_number(value)
    return at + clock.offset_s if at is not None and at + clock.offset_s >= 0 and at < _MAX_TIMESTAMP else None


def _clamp_to_now(at: float | None, clock: ClockReading) -> float | None:
    return at if at is None or at <= clock.now + MAX_CLOCK_SKEW_S else clock.now


_Number = TypeVar("_Number", int, float)


def _first_known(one: _Number | None, other: _Number | None) -> _Number | None:
    return other if one is None else one
