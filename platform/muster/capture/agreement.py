"""Decides which steps are profiled, and follows the ranks until their traces are stored. Pure.

1. The newest heartbeats give the step of each rank. A step ahead of all of them is proposed, so far ahead that a rank
   can read and acknowledge the proposal before it gets there.
2. A rank that is past that step rejects the proposal; then a step twice as far ahead is proposed.
3. If all chosen ranks have acknowledged, the steps are agreed. If one has not after 10 s or two steps, whichever is
   longer, the capture fails and names it, and it is withdrawn from ranks that have not begun.
4. The capture has succeeded when the trace of each rank is stored.

`advance` is called again and again. All that it remembers is in the status, so that a restarted caller continues.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.api.spec.captures import (
    FINISHED_CAPTURE_PHASES,
    CapturedRank,
    TraceCaptureSpec,
    TraceCaptureStatus,
)
from muster.capture.protocol import (
    MAX_WORLD_SIZE,
    CaptureObservation,
    CaptureRequest,
    RankAnswer,
    RankReport,
    StoredTrace,
)
from muster.capture.ranks import select_ranks
from muster.capture.status_changes import finished, with_capture_condition
from muster.errors import MusterError
from muster.text import format_duration, pluralize, rank_list
from muster.tracing.runs.trace_files import TRACES

AGREE_WITHIN_S = 10.0
STALLED_AFTER_S = 60.0
"""After the agreement, a rank without a heartbeat for this time, or for 20 steps, will not write its trace."""
WRITE_WITHIN_S = 60.0
"""A rank has made the steps and goes on, and has not written its trace after this time."""
END_WITHIN_S = 1800.0
"""Besides the time of the steps, from the agreement until all ranks have written, whatever they report."""
MAX_STEP_TIME_S = 600.0
"""Ranks that report a longer one have the deadlines of this one."""
STORE_WITHIN_S = 300.0
"""A rank has written its trace, and no collector has stored it after this time."""
NOT_INSTRUMENTED = (
    "no rank reports steps: the program is still starting, or its steps are not known. Traces are recorded by Muster's "
    "trainer, by the component muster.train.script, and for scripts started with: "
    "python -m muster_components.trainer.instrument SCRIPT args..."
)
_MIN_AHEAD = 4  # a rank may be two steps ahead of its heartbeat, and the profiler starts one step early
_MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class CaptureTarget:
    """What is to be captured: an id that is never used again, the spec, and how long it takes at most until a proposal
    has reached all ranks."""

    id: str
    spec: TraceCaptureSpec
    lead_s: float


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """The new status, and the request to send to the collectors (None: nothing to send)."""

    status: TraceCaptureStatus
    request: CaptureRequest | None = None


def advance(
    target: CaptureTarget, status: TraceCaptureStatus, seen: CaptureObservation, job_problem: str, now: float
) -> CaptureProgress:
    """The next state. `job_problem`: why the job can no longer be profiled; empty while it runs."""
    if status.phase in FINISHED_CAPTURE_PHASES:
        return CaptureProgress(status)
    reports = _of_newest_attempt(seen.reports)
    if status.agreed_at is not None:
        return _follow(target, status, seen, reports, job_problem, now)
    if job_problem:
        return _failed(target, status, "JobNotRunning", job_problem, now)
    if status.requested_at is None:
        status = status.model_copy(update={"requested_at": now})
    if status.proposal and any(report.attempt != status.attempt for report in reports):
        return _failed(target, status, "JobRestarted", "the job was restarted before the steps were agreed", now)
    if not status.proposal:
        return _begin(target, status, seen, reports, now)
    return _await_answers(target, _with_answers(target, status, seen.answers), reports, now)


def cancel_request(target: CaptureTarget, status: TraceCaptureStatus) -> CaptureRequest | None:
    """The request that withdraws the proposal; None if nothing was proposed."""
    if not status.proposal or status.start_step is None:
        return None
    return _request(target, status, cancelled=True)


def repeat_request(target: CaptureTarget, status: TraceCaptureStatus) -> CaptureRequest | None:
    """The present proposal, for collectors that do not have it; None without one."""
    if not status.proposal or status.phase in FINISHED_CAPTURE_PHASES:
        return None
    return _request(target, status)


def _begin(
    target: CaptureTarget,
    status: TraceCaptureStatus,
    seen: CaptureObservation,
    reports: Sequence[RankReport],
    now: float,
) -> CaptureProgress:
    """Choose the ranks and make the first proposal, once all ranks have reported a step."""
    is_late = now >= (status.requested_at or now) + AGREE_WITHIN_S
    if not reports:
        if is_late or not seen.unreachable:
            why = f"no collector answers: {'; '.join(seen.unreachable[:3])}" if seen.unreachable else NOT_INSTRUMENTED
            return _failed(target, status, "NoHeartbeat", why, now)
        return CaptureProgress(status)
    world_size = reports[0].world_size
    if world_size > MAX_WORLD_SIZE:
        why = f"the job has {world_size} ranks; captures require at most {MAX_WORLD_SIZE}"
        return _failed(target, status, "TooManyRanks", why, now)
    missing = sorted(set(range(world_size)) - {report.rank for report in reports})
    if missing:
        why = f"{rank_list(missing)} of {world_size} {'has' if len(missing) == 1 else 'have'} no heartbeat"
        if seen.unreachable:
            why += f"; no answer from {'; '.join(seen.unreachable[:3])}"
        return _failed(target, status, "RanksMissing", why, now) if is_late else CaptureProgress(status)
    waiting = [report for report in reports if report.step < 1]
    if waiting:
        first = waiting[0]
        has = "has" if len(waiting) == 1 else "have"
        why = f"{rank_list([one.rank for one in waiting])} {has} not completed a step of this attempt"
        why += f" (phase {first.phase})" if first.phase else ""
        return _failed(target, status, "NoStepYet", f"{why}; try again after the first step", now)
    try:
        chosen = select_ranks(target.spec.ranks, reports, target.id)
    except MusterError as error:
        return _failed(target, status, error.reason, str(error), now)
    status = status.model_copy(
        update={"attempt": reports[0].attempt, "ranks": [CapturedRank(rank=rank) for rank in chosen]}
    )
    return _propose(target, status, reports, now)


def _propose(
    target: CaptureTarget, status: TraceCaptureStatus, reports: Sequence[RankReport], now: float
) -> CaptureProgress:
    """Propose a step ahead of all ranks, twice as far for each proposal before."""
    known = [report.step_time_s for report in reports if report.step_time_s is not None]
    fastest_s = min(known, default=1.0)
    current = max(report.step + math.floor(report.age_s / (report.step_time_s or 1.0)) for report in reports)
    if any(report.age_s > 2 * (report.step_time_s or 1.0) + 2.0 for report in reports):
        current = max(report.step for report in reports)  # a rank that makes no step stops the others
    ahead = _MIN_AHEAD + math.ceil(target.lead_s * 2**status.proposal / fastest_s)
    start = current + ahead
    last = max((report.steps for report in reports if report.steps), default=None)
    if last is not None and start > last:
        why = f"the run ends with step {last}, and step {start} would be the first that all ranks can agree on"
        return _failed(target, status, "RunEnds", why, now)
    end = start + target.spec.steps if last is None else min(start + target.spec.steps, last + 1)
    ranks = [entry.model_copy(update={"state": "waiting", "reason": ""}) for entry in status.ranks]
    status = status.model_copy(
        update={
            "proposal": status.proposal + 1,
            "start_step": start,
            "end_step": end,
            "ranks": ranks,
            "message": f"waiting for {pluralize(len(ranks), 'rank')} to acknowledge step {start}",
        }
    )
    return CaptureProgress(status, _request(target, status))


def _await_answers(
    target: CaptureTarget, status: TraceCaptureStatus, reports: Sequence[RankReport], now: float
) -> CaptureProgress:
    states = {entry.state for entry in status.ranks}
    step_time_s = _step_time_s(reports)
    is_late = now >= (status.requested_at or now) + max(AGREE_WITHIN_S, 2 * step_time_s)
    if states <= {"armed", "recording", "written", "collected"}:
        agreed = status.model_copy(update={"phase": "Agreed", "agreed_at": now, "message": f"agreed: {_steps(status)}"})
        return CaptureProgress(with_capture_condition(agreed, "Agreed", "RanksAcknowledged", agreed.message, now))
    failed = [entry for entry in status.ranks if entry.state == "failed"]
    if failed:  # for another reason than the step
        why = _reasons(failed)
        return _failed(target, status, "RanksFailed", why, now)
    if not is_late:
        if "rejected" in states:
            return _propose(target, status, reports, now)
        return CaptureProgress(status, _request(target, status))
    by_rank = {report.rank: report for report in reports}
    ranks = [
        entry.model_copy(update={"reason": _no_answer_reason(by_rank.get(entry.rank))})
        if entry.state == "waiting"
        else entry
        for entry in status.ranks
    ]
    blamed = [entry for entry in ranks if entry.state in ("waiting", "rejected", "failed")]
    why = _reasons(blamed)
    message = f"{rank_list([entry.rank for entry in blamed])} did not acknowledge the steps: {why}"
    return _failed(target, status.model_copy(update={"ranks": ranks}), "NotAcknowledged", message, now)


def _follow(
    target: CaptureTarget,
    status: TraceCaptureStatus,
    seen: CaptureObservation,
    reports: Sequence[RankReport],
    job_problem: str,
    now: float,
) -> CaptureProgress:
    """After the agreement: wait for the traces, or the memory snapshots."""
    is_memory = target.spec.kind == "Memory"
    noun = "memory snapshot" if is_memory else "trace"
    status = _with_answers(target, status, seen.answers)
    status = _with_traces(status, (one for one in seen.traces if one.is_snapshot == is_memory), is_memory)
    unwritten = [entry for entry in status.ranks if entry.state not in ("written", "collected", "failed")]
    why = ""
    if any(report.attempt != status.attempt for report in reports):
        why = f"the job was restarted before the {noun} was written"
    elif job_problem:
        why = f"{job_problem} before the {noun} was written"
    elif unwritten:
        why = _stalled(unwritten, reports) or _unwritten_too_long(target, status, unwritten, reports, now)
    if unwritten and why:
        status = _with_failed(status, unwritten, why)
    elif not unwritten and _is_store_overdue(status, reports, now):
        unstored = [entry for entry in status.ranks if entry.state == "written"]
        status = _with_failed(status, unstored, f"the {noun} was written, and no collector was seen to store it")
    if any(entry.state not in ("collected", "failed") for entry in status.ranks):
        has_begun = status.phase == "Agreed" and any(entry.state != "armed" for entry in status.ranks)
        return CaptureProgress(status.model_copy(update={"phase": "Recording"}) if has_begun else status)
    failed = [entry for entry in status.ranks if entry.state == "failed"]
    if failed:
        why = _reasons(failed)
        return _failed(target, status, "RanksFailed", f"no {noun} of {rank_list([e.rank for e in failed])}: {why}", now)
    message = f"{pluralize(len(status.ranks), noun)} of {_steps(status)} stored"
    return CaptureProgress(finished(status, "Succeeded", "TracesStored", message, now))


def _steps(status: TraceCaptureStatus) -> str:
    first, last = status.start_step, (status.end_step or 0) - 1
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _reasons(failed: Sequence[CapturedRank]) -> str:
    by_reason: dict[str, list[int]] = {}
    for entry in failed:
        by_reason.setdefault(entry.reason, []).append(entry.rank)
    return "; ".join(f"{rank_list(ranks)}: {reason}" for reason, ranks in list(by_reason.items())[:_MAX_NAMED])


def _with_failed(status: TraceCaptureStatus, entries: Sequence[CapturedRank], why: str) -> TraceCaptureStatus:
    failed = {entry.rank for entry in entries}
    ranks = [
        entry.model_copy(update={"state": "failed", "reason": why}) if entry.rank in failed else entry
        for entry in status.ranks
    ]
    return status.model_copy(update={"ranks": ranks})


def _with_answers(
    target: CaptureTarget, status: TraceCaptureStatus, answers: Iterable[RankAnswer]
) -> TraceCaptureStatus:
    """The status with the answers to the current proposal."""
    current = {
        answer.rank: answer
        for answer in answers
        if (answer.id, answer.proposal, answer.attempt) == (target.id, status.proposal, status.attempt)
    }
    ranks = [
        entry.model_copy(update={"state": current[entry.rank].state, "reason": current[entry.rank].reason})
        if entry.rank in current and entry.state != "collected"
        else entry
        for entry in status.ranks
    ]
    return status if ranks == status.ranks else status.model_copy(update={"ranks": ranks})


def _with_traces(status: TraceCaptureStatus, traces: Iterable[StoredTrace], is_memory: bool) -> TraceCaptureStatus:
    """The status with what is stored of these steps. The path of a memory snapshot is that in the run folder."""
    stored = {
        trace.rank: trace
        for trace in traces
        if (trace.attempt, trace.start_step) == (status.attempt, status.start_step)
    }
    folder = f"{TRACES}/" if is_memory else ""
    ranks = []
    for entry in status.ranks:
        trace = stored.get(entry.rank)
        if trace is not None and trace.is_valid:
            entry = entry.model_copy(update={"state": "collected", "reason": "", "file": folder + trace.file})
        elif trace is not None:
            entry = entry.model_copy(update={"state": "failed", "reason": f"corrupt: {trace.reason}"[:1024]})
        ranks.append(entry)
    return status if ranks == status.ranks else status.model_copy(update={"ranks": ranks})


def _stalled(unwritten: Sequence[CapturedRank], reports: Sequence[RankReport]) -> str:
    """Why a rank that has not written its trace never will; empty if all of them make steps."""
    by_rank = {report.rank: report for report in reports}
    for entry in unwritten:
        report = by_rank.get(entry.rank)
        if report is None:
            continue
        if report.age_s > max(STALLED_AFTER_S, 20 * _step_time_s([report])):
            ago = format_duration(report.age_s)
            return f"rank {report.rank} has completed no step after step {report.step}, {ago} ago"
    return ""


def _unwritten_too_long(
    target: CaptureTarget,
    status: TraceCaptureStatus,
    unwritten: Sequence[CapturedRank],
    reports: Sequence[RankReport],
    now: float,
) -> str:
    """Why ranks that go on have had the time to write their traces; empty if they may still do it."""
    ranks = {entry.rank for entry in unwritten}
    for report in (one for one in reports if one.rank in ranks):
        past = report.step - (status.end_step or 0) - 2 * _MIN_AHEAD
        if past >= 0 and past * _step_time_s([report]) + report.age_s >= WRITE_WITHIN_S:
            return f"rank {report.rank} has completed step {report.step}, and has not written its trace"
    step_time_s = _step_time_s(reports) or MAX_STEP_TIME_S
    steps_s = target.lead_s * 2**status.proposal + _steps_to_make(status) * step_time_s
    if now > (status.agreed_at or now) + 4 * steps_s + END_WITHIN_S:  # a profiler makes steps slower
        return f"no trace within {format_duration(now - (status.agreed_at or now))} of the agreement"
    return ""


def _is_store_overdue(status: TraceCaptureStatus, reports: Sequence[RankReport], now: float) -> bool:
    return now > (status.agreed_at or now) + 2 * _steps_to_make(status) * _step_time_s(reports) + STORE_WITHIN_S


def _steps_to_make(status: TraceCaptureStatus) -> int:
    return (status.end_step or 0) - (status.start_step or 0) + 2 * _MIN_AHEAD


def _step_time_s(reports: Sequence[RankReport]) -> float:
    """The longest time of a step for deadlines; 0 if unknown."""
    return min(MAX_STEP_TIME_S, max((report.step_time_s or 0.0 for report in reports), default=0.0))


def _no_answer_reason(report: RankReport | None) -> str:
    if report is None:
        return "no answer, and no heartbeat"
    return (
        f"no answer; its newest heartbeat is of step {report.step}, {format_duration(report.age_s)} ago. If the job "
        "hangs, see: muster trace JOB --stacks"
    )


def _of_newest_attempt(reports: Sequence[RankReport]) -> list[RankReport]:
    newest = max((report.attempt for report in reports), default=0)
    by_rank = {report.rank: report for report in reports if report.attempt == newest}
    return [by_rank[rank] for rank in sorted(by_rank)]


def _request(target: CaptureTarget, status: TraceCaptureStatus, *, cancelled: bool = False) -> CaptureRequest:
    return CaptureRequest(
        id=target.id,
        proposal=status.proposal,
        attempt=status.attempt,
        start_step=status.start_step or 1,
        end_step=status.end_step or 2,
        ranks=tuple(entry.rank for entry in status.ranks),
        options=("snapshot",) if target.spec.kind == "Memory" else tuple(target.spec.options),
        cancelled=cancelled,
    )


def _failed(
    target: CaptureTarget, status: TraceCaptureStatus, reason: str, message: str, now: float
) -> CaptureProgress:
    """The failed capture; it is withdrawn from ranks that have not begun."""
    return CaptureProgress(finished(status, "Failed", reason, message, now), cancel_request(target, status))
