"""The records of a capture: the request that a collector writes, the answers of the ranks, and what is observed.

User programs write heartbeats and answers, so all of their values are checked here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from muster.heartbeats.parse import finite_number, parse_count
from muster.tracing.read.flight_recorder import RankCollectives

AnswerState = Literal["armed", "recording", "written", "rejected", "failed"]
_STATES: Mapping[str, AnswerState] = {
    "armed": "armed",
    "recording": "recording",
    "written": "written",
    "rejected": "rejected",
    "failed": "failed",
}
MAX_REASON = 500
MAX_WORLD_SIZE = 4096
"""Ranks of a job whose files are read; larger jobs cannot be captured."""
_MIN_STEP_TIME_S, _MAX_STEP_TIME_S = 1e-6, 86_400.0
_MAX_REPORTED_WORLD_SIZE = 1_000_000


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`capture/request.json`: profile the steps `start_step` <= k < `end_step` on `ranks` (empty: all).

    A later `proposal` of the same `id` replaces an earlier one; a `cancelled` one withdraws it from ranks that have not
    begun to record.
    """

    id: str
    proposal: int
    attempt: int
    start_step: int
    end_step: int
    ranks: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    cancelled: bool = False


class RankAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`capture/rank-<r>.json`: what a rank does about a proposal. `step` is its next step."""

    id: str
    proposal: int
    attempt: int
    rank: int
    state: AnswerState
    step: int = 0
    reason: str = ""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's newest heartbeat: the completed `step`, `age_s` ago. `stage`: of a pipeline; None without one. `steps`:
    the last step of the run, if known."""

    rank: int
    world_size: int
    attempt: int
    step: int
    age_s: float
    step_time_s: float | None = None
    steps: int | None = None
    stage: int | None = None
    phase: str = ""


class StoredTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace or a memory snapshot in a manifest; `file` is relative to the traces folder, `reason` says why it is
    corrupt."""

    file: str
    rank: int
    attempt: int
    start_step: int
    end_step: int
    is_valid: bool
    reason: str = ""
    is_snapshot: bool = False


class HungRank(msgspec.Struct, frozen=True):
    """The main thread of one rank. `frames`: innermost first, as `name (file:line)`; `reason`: why there are none;
    `file`: the stacks of all threads, below the run folder; `pod` and `node`: empty on one host; `world_size`: the
    ranks of the job, 0 if its launcher did not say; `collectives`: of torch's flight recorder, None without one."""

    rank: int
    frames: tuple[str, ...] = ()
    reason: str = ""
    file: str = ""
    pod: str = ""
    world_size: int = 0
    node: str = ""
    collectives: RankCollectives | None = None


class JobStacks(msgspec.Struct, frozen=True):
    """The stacks of all ranks of a job. `message`: which rank the others wait for, and where the ranks are."""

    message: str
    ranks: tuple[HungRank, ...]


class CaptureObservation(msgspec.Struct, frozen=True, kw_only=True):
    """What the run folders of a job contain about a capture. `unreachable`: why a pod's collector did not answer."""

    reports: tuple[RankReport, ...] = ()
    answers: tuple[RankAnswer, ...] = ()
    traces: tuple[StoredTrace, ...] = ()
    stacks: tuple[HungRank, ...] = ()
    unreachable: tuple[str, ...] = ()


def parse_answer(fields: Mapping[str, object]) -> RankAnswer | None:
    """The answer, or None if a value is invalid."""
    rank, proposal, attempt = (parse_count(fields.get(name)) for name in ("rank", "proposal", "attempt"))
    state, capture, reason = fields.get("state"), fields.get("id"), fields.get("reason")
    if rank is None or proposal is None or attempt is None or not isinstance(state, str) or state not in _STATES:
        return None
    return RankAnswer(
        id=capture[:128] if isinstance(capture, str) else "",
        proposal=proposal,
        attempt=attempt,
        rank=rank,
        state=_STATES[state],
        step=parse_count(fields.get("step")) or 0,
        reason=reason[:MAX_REASON] if isinstance(reason, str) else "",
    )


def parse_report(fields: Mapping[str, object], now: float) -> RankReport | None:
    """The heartbeat (docs/reference/run-folder.md) as a report at time `now` of the writer's clock; None if invalid."""
    rank, world_size, attempt = (parse_count(fields.get(name)) for name in ("rank", "world_size", "attempt"))
    at, phase = finite_number(fields.get("at")), fields.get("phase")
    if rank is None or not world_size or not rank < world_size <= _MAX_REPORTED_WORLD_SIZE or at is None:
        return None
    step_time_s = finite_number(fields.get("step_time_s"))
    step, steps = parse_count(fields.get("step")) or 0, parse_count(fields.get("steps"))
    counted = parse_count(fields.get("optimizer_step"))
    if counted is not None:  # the program counts its steps otherwise, perhaps over all attempts
        step, steps = counted, None if steps is None else counted + max(0, steps - step)
    time_slice = parse_count(fields.get("time_slice"))
    if time_slice is not None and counted is None:  # a program without an optimizer: each second is a step
        step, steps, step_time_s = time_slice, None, 1.0
    return RankReport(
        rank=rank,
        world_size=world_size,
        attempt=attempt or 0,
        step=step,
        age_s=max(0.0, now - at),
        step_time_s=step_time_s if _is_step_time(step_time_s) else None,
        steps=steps,
        stage=parse_count(fields.get("stage")),
        phase=phase[:20] if isinstance(phase, str) else "",
    )


def is_plausible(report: RankReport) -> bool:
    """Whether a report that another program sent has the values that `parse_report` allows."""
    return (
        0 <= report.rank < min(report.world_size, MAX_WORLD_SIZE)
        and report.world_size <= _MAX_REPORTED_WORLD_SIZE
        and all(parse_count(value) is not None for value in (report.step, report.attempt))
        and all(value is None or parse_count(value) is not None for value in (report.steps, report.stage))
        and (report.step_time_s is None or _is_step_time(report.step_time_s))
        and 0 <= report.age_s < math.inf
    )


def _is_step_time(value: float | None) -> bool:
    return value is not None and _MIN_STEP_TIME_S <= value <= _MAX_STEP_TIME_S
