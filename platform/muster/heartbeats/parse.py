"""Validates rank 0's heartbeat and the newest durable checkpoint of a run folder (docs/reference/run-folder.md).

User programs write both, with their own clocks, and the values go into a job's status. All readers use this module to
decide which numbers and times are plausible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from muster.cluster import Heartbeat, RunTime

NUMERIC_FIELDS = (
    "rank", "world_size", "attempt", "step", "steps", "loss", "tokens_per_s", "step_time_s", "eta_s", "mfu",
    "peak_memory_bytes", "checkpoint_step", "checkpoint_at", "at", "stage", "collectives_per_step",
    "collective_bytes_per_step", "optimizer_step", "pace", "time_slice",
)  # fmt: skip
"""Numeric fields of a heartbeat."""
MAX_GROUPS = 16
"""Process groups whose collectives a heartbeat counts."""
PHASES = frozenset({"setup", "compile", "train", "checkpoint", "done"})
"""Valid values of the heartbeat field `phase`."""
STARTING_PHASES = frozenset({"setup", "compile"})
"""Those before the first step of an attempt."""
StepPoint: TypeAlias = tuple[int, float | None, float | None]
"""Step, its loss, and its time in seconds; None: not reported."""
MAX_CLOCK_SKEW_S = 5.0
"""Tolerated difference between clocks; a time further in the future is invalid."""
_GROUP = re.compile(r"[A-Za-z0-9_.:-]{1,80}")
_MAX_TIMESTAMP = 253_402_300_800.0  # the year 10000, the first that a timestamp in a status cannot represent
_MAX_COUNT = 2**53  # the largest integer that every JSON parser represents exactly


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The local time (Unix seconds), and the seconds to add to a time of the writer's clock to get local time."""

    now: float
    offset_s: float = 0.0


def parse_heartbeat(
    reported: Mapping[str, object],
    latest_checkpoint: Mapping[str, object],
    clock: ClockReading,
    previous: Heartbeat | None = None,
) -> Heartbeat | None:
    """A heartbeat from the reported fields and `checkpoints/latest`, times in the local clock.

    `latest_checkpoint` takes precedence over the checkpoint fields of `reported`, unless its time is unknown. None if
    there is neither a heartbeat time nor a checkpoint time; of a program that reports nothing else, the checkpoint's
    steps and loss count, and no step is known to have ended: it does not stall between two checkpoints. Implausible
    values are unknown (see `parse_time`, `parse_count`); a checkpoint dated in the future counts from when it was first
    seen. Returns the `previous` object itself if nothing changed.
    """
    at, step = parse_time(reported.get("at"), clock), parse_count(reported.get("step"))
    # Step and time are of one checkpoint: the step of another one would say that less is lost, or more.
    dated, saved = _to_local_clock(latest_checkpoint.get("at"), clock), latest_checkpoint.get("step")
    if dated is None and (reported_at := _to_local_clock(reported.get("checkpoint_at"), clock)) is not None:
        dated, saved = reported_at, reported.get("checkpoint_step")
    checkpoint_step = parse_count(saved)
    checkpoint_at = _clamp_to_now(dated, clock)
    if dated != checkpoint_at and previous is not None and previous.checkpoint_step == checkpoint_step:
        checkpoint_at = _first_known(previous.checkpoint_at, checkpoint_at)
    if at is None and checkpoint_at is None:
        return None
    is_reported = at is not None
    known = reported if is_reported else latest_checkpoint
    at = at if at is not None else checkpoint_at or 0.0
    step = step if step is not None else checkpoint_step or 0
    heartbeat = Heartbeat(
        at=at,
        step=step,
        step_changed_at=previous.step_changed_at if previous is not None and previous.step == step else at,
        attempt=parse_count(reported.get("attempt")),
        has_stepped=is_reported and reported.get("phase") not in STARTING_PHASES,
        checkpoint_step=checkpoint_step,
        checkpoint_at=checkpoint_at,
        total_steps=parse_count(known.get("steps")),
        loss=parse_field("loss", known.get("loss")),
        step_time_s=parse_field("step_time_s", reported.get("step_time_s")),
        eta_s=parse_field("eta_s", reported.get("eta_s")),
        tokens_per_s=parse_field("tokens_per_s", reported.get("tokens_per_s")),
        collectives_per_step=parse_field("collectives_per_step", reported.get("collectives_per_step")),
        collective_bytes_per_step=parse_field("collective_bytes_per_step", reported.get("collective_bytes_per_step")),
    )
    return previous if heartbeat == previous else heartbeat


RUN_TIME_CAUSES = frozenset(
    {"start", "productive", "checkpoint", "tracing", "slow", "lost", "recovery", "stopping", "unknown"}
)
"""Causes into which records divide the time of pods (`muster.usage.causes`)."""


def run_time_fields(run: RunTime | None) -> dict[str, object] | None:
    """As a collector sends it."""
    if run is None:
        return None
    return {
        "attempt": run.attempt,
        "first_step": run.first_step,
        "last_step": run.last_step,
        "at": run.at,
        "milliseconds": dict(run.milliseconds),
    }


def parse_run_time(reported: object, clock: ClockReading) -> RunTime | None:
    """A division of the time of pods, in the local clock; None if a part of it is invalid."""
    fields = reported if isinstance(reported, Mapping) else {}
    counts = [parse_count(fields.get(name)) for name in ("attempt", "first_step", "last_step")]
    attempt, first_step, last_step = counts
    at, spent = parse_time(fields.get("at"), clock), fields.get("milliseconds")
    if attempt is None or first_step is None or last_step is None or at is None or not isinstance(spent, Mapping):
        return None
    known = {cause: parse_count(amount) for cause, amount in spent.items() if cause in RUN_TIME_CAUSES}
    milliseconds = {cause: amount for cause, amount in known.items() if amount is not None}
    return RunTime(attempt, first_step, last_step, at, milliseconds) if len(milliseconds) == len(spent) else None


def newest_checkpoint(
    announced: Mapping[str, object] | None, watched: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    """The later one of `checkpoints/latest`, which a program writes, and `checkpoint.json`, which the launcher does."""
    if announced is None or watched is None:
        return watched if announced is None else announced
    times = finite_number(announced.get("at")), finite_number(watched.get("at"))
    return watched if times[0] is None or (times[1] is not None and times[1] > times[0]) else announced


def finite_number(value: object) -> float | None:
    """The value as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def parse_field(name: str, value: object) -> float | None:
    """The number of a field of `NUMERIC_FIELDS` if it is valid: a finite loss, else between 0 and 2**53. Or None."""
    number = finite_number(value)
    return number if number is None or name == "loss" or 0 <= number <= _MAX_COUNT else None


def parse_count(value: object) -> int | None:
    """The value as an int if it is between 0 and 2**53, else None."""
    count = finite_number(value)
    return int(count) if count is not None and 0 <= count <= _MAX_COUNT else None


def parse_collectives(value: object) -> dict[str, int]:
    """The number of collectives by process group, of the first 16 groups; invalid entries are left out."""
    entries = list(value.items())[:MAX_GROUPS] if isinstance(value, dict) else []
    counts = ((name, parse_count(count)) for name, count in entries if isinstance(name, str) and _GROUP.fullmatch(name))
    return {name: count for name, count in counts if count is not None}


def parse_time(value: object, clock: ClockReading) -> float | None:
    """Unix seconds in the local clock; None for milliseconds, times before 1970 and values that are not numbers.

    A time more than `MAX_CLOCK_SKEW_S` in the future becomes now, so that later valid times compare as later.
    """
    return _clamp_to_now(_to_local_clock(value, clock), clock)


def _to_local_clock(value: object, clock: ClockReading) -> float | None:
    at = finite_number(value)
    return at + clock.offset_s if at is not None and at + clock.offset_s >= 0 and at < _MAX_TIMESTAMP else None


def _clamp_to_now(at: float | None, clock: ClockReading) -> float | None:
    return at if at is None or at <= clock.now + MAX_CLOCK_SKEW_S else clock.now


_Number = TypeVar("_Number", int, float)


def _first_known(one: _Number | None, other: _Number | None) -> _Number | None:
    return other if one is None else one
