"""All ranks profile the same steps, or the status says which ranks do not and why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from muster.api.spec import TraceCaptureSpec, TraceCaptureStatus
from muster.capture.agreement import (
    END_WITHIN_S,
    MAX_STEP_TIME_S,
    CaptureProgress,
    CaptureTarget,
    advance,
    cancel_request,
)
from muster.capture.protocol import AnswerState, CaptureObservation, RankAnswer, RankReport, StoredTrace

NO_RANKS = CaptureObservation()


def report(rank: int, **changes: object) -> RankReport:
    values: dict[str, object] = {"world_size": 2, "attempt": 1, "step": 100, "age_s": 0.0, "step_time_s": 0.1}
    return RankReport(rank=rank, **(values | changes))  # type: ignore[arg-type]


@dataclass
class Capture:
    """One capture with two ranks, whose observations a test changes."""

    spec: TraceCaptureSpec = TraceCaptureSpec(job="llama")
    status: TraceCaptureStatus = TraceCaptureStatus()
    seen: CaptureObservation = CaptureObservation(reports=(report(0), report(1)))
    now: float = 1000.0
    last: CaptureProgress = field(default_factory=lambda: CaptureProgress(TraceCaptureStatus()))

    @property
    def target(self) -> CaptureTarget:
        return CaptureTarget("llama-1", self.spec, lead_s=1.0)

    def step(self, after_s: float = 0.0, problem: str = "") -> CaptureProgress:
        self.now += after_s
        self.last = advance(self.target, self.status, self.seen, problem, self.now)
        self.status = self.last.status
        return self.last

    def answer(self, *states: AnswerState, reason: str = "") -> None:
        answers = tuple(
            RankAnswer(
                id="llama-1", proposal=self.status.proposal, attempt=1, rank=rank, state=state, step=101, reason=reason
            )
            for rank, state in enumerate(states)
        )
        self.seen = CaptureObservation(reports=self.seen.reports, answers=answers, traces=self.seen.traces)

    def store(self, *ranks: int, is_valid: bool = True, is_snapshot: bool = False) -> None:
        first, end = self.status.start_step or 0, self.status.end_step or 0
        traces = tuple(
            StoredTrace(
                file=f"memory/rank-{rank}.pickle.gz" if is_snapshot else f"rank-{rank}.json.gz",
                rank=rank, attempt=1, start_step=first, end_step=end,
                is_valid=is_valid, reason="" if is_valid else "truncated", is_snapshot=is_snapshot,
            )
            for rank in ranks
        )  # fmt: skip
        self.seen = CaptureObservation(reports=self.seen.reports, answers=self.seen.answers, traces=traces)

    def agreed(self) -> Capture:
        self.step()
        self.answer("armed", "armed")
        self.step(after_s=0.5)
        assert self.status.phase == "Agreed"
        return self


def states(status: TraceCaptureStatus) -> list[str]:
    return [entry.state for entry in status.ranks]


def test_the_proposed_step_is_ahead_of_all_ranks_by_the_time_to_read_it() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0, step=100), report(1, step=104, age_s=0.5))))
    request = capture.step().request
    assert request is not None
    # rank 1 is at step 109 now, and makes ten steps in the second that a request takes to reach it
    assert request.start_step >= 109 + 10
    assert (request.end_step - request.start_step, request.ranks, request.attempt) == (5, (0, 1), 1)
    assert (capture.status.phase, states(capture.status)) == ("Pending", ["waiting", "waiting"])


def test_slow_steps_are_agreed_within_a_few_steps() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0, step_time_s=60.0), report(1, step_time_s=60.0))))
    request = capture.step().request
    assert request is not None
    assert request.start_step <= 100 + 5


def test_the_capture_succeeds_when_the_trace_of_each_rank_is_stored() -> None:
    capture = Capture()
    capture.step()
    assert capture.step(after_s=0.2).request == capture.last.request  # sent again: a collector may have been restarted
    capture.answer("armed")
    assert capture.step().status.phase == "Pending"
    capture.answer("armed", "recording")
    assert capture.step().status.phase == "Agreed"
    assert capture.step().status.phase == "Recording"
    capture.answer("written", "written")
    assert capture.step().status.phase == "Recording"
    capture.store(0)
    assert states(capture.step().status) == ["collected", "written"]
    capture.store(0, 1)
    status = capture.step().status
    assert (status.phase, status.reason, [entry.file for entry in status.ranks]) == (
        "Succeeded", "TracesStored", ["rank-0.json.gz", "rank-1.json.gz"],
    )  # fmt: skip
    assert [condition.type for condition in status.conditions] == ["Agreed", "Complete"]


def test_a_rank_that_is_past_the_step_causes_a_later_proposal() -> None:
    capture = Capture()
    first = capture.step().request
    capture.answer("armed", "rejected", reason="step 130 had begun")
    second = capture.step(after_s=0.3).request
    assert first is not None
    assert second is not None
    assert (second.proposal, second.start_step > first.start_step) == (2, True)
    assert states(capture.status) == ["waiting", "waiting"]  # the answers to the first proposal do not count
    capture.answer("armed", "armed")
    assert capture.step().status.phase == "Agreed"


def test_answers_of_an_earlier_proposal_or_another_capture_do_not_count() -> None:
    capture = Capture()
    capture.step()
    for other in ({"proposal": 0}, {"id": "llama-0"}, {"attempt": 0}):
        answers = [
            {"id": "llama-1", "proposal": 1, "attempt": 1, "rank": rank, "state": "armed", **other} for rank in (0, 1)
        ]
        capture.seen = CaptureObservation(
            reports=capture.seen.reports,
            answers=tuple(RankAnswer(**fields) for fields in answers),  # type: ignore[arg-type]
        )
        assert (capture.step().status.phase, states(capture.status)) == ("Pending", ["waiting", "waiting"])


def test_a_rank_without_an_answer_is_named_with_its_newest_step_and_the_others_withdraw() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0), report(1, age_s=40.0))))
    capture.step()
    capture.answer("armed")
    assert capture.step(after_s=9.9).status.phase == "Pending"
    progress = capture.step(after_s=0.2)
    assert (progress.status.phase, progress.status.reason) == ("Failed", "NotAcknowledged")
    assert "rank 1: no answer; its newest heartbeat is of step 100, 40s ago" in progress.status.message
    assert progress.request is not None
    assert progress.request.cancelled


def test_ranks_with_slow_steps_have_two_steps_to_answer() -> None:
    slow = CaptureObservation(reports=(report(0, step_time_s=60.0), report(1, step_time_s=60.0)))
    capture = Capture(seen=slow)
    capture.step()
    assert capture.step(after_s=119.0).status.phase == "Pending"
    assert capture.step(after_s=2.0).status.phase == "Failed"


@pytest.mark.parametrize(
    ("seen", "reason", "text"),
    [
        (NO_RANKS, "NoHeartbeat", "muster_components.trainer.instrument"),
        (CaptureObservation(reports=(report(0, step=0, phase="compile"), report(1))), "NoStepYet", "rank 0 has not"),
        (CaptureObservation(reports=(report(0, steps=101), report(1, steps=101))), "RunEnds", "ends with step 101"),
    ],
)
def test_a_job_that_cannot_be_profiled_is_refused_at_once(seen: CaptureObservation, reason: str, text: str) -> None:
    status = Capture(seen=seen).step().status
    assert (status.phase, status.reason, status.proposal) == ("Failed", reason, 0)
    assert text in status.message


def test_a_rank_without_a_heartbeat_is_awaited_and_then_named() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0),), unreachable=("pod-1: no answer",)))
    assert capture.step().status.phase == "Pending"
    status = capture.step(after_s=11).status
    assert (status.phase, status.reason) == ("Failed", "RanksMissing")
    assert "rank 1 of 2 has no heartbeat; no answer from pod-1: no answer" in status.message


def test_steps_end_with_the_run() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0, steps=116), report(1, steps=116))))
    request = capture.step().request
    assert request is not None
    assert request.end_step == 117


def test_a_restart_before_the_agreement_fails_the_capture() -> None:
    capture = Capture()
    capture.step()
    capture.seen = CaptureObservation(reports=(report(0, attempt=2, step=3), report(1, attempt=2, step=3)))
    assert capture.step().status.reason == "JobRestarted"


def test_after_a_restart_the_written_traces_are_still_stored_and_the_others_are_named() -> None:
    capture = Capture().agreed()
    capture.answer("written", "recording")
    restarted = (report(0, attempt=2, step=0), report(1, attempt=2, step=0))
    capture.seen = CaptureObservation(reports=restarted, answers=capture.seen.answers)
    assert capture.step().status.phase == "Recording"
    capture.store(0)
    status = capture.step().status
    assert (status.phase, status.reason, states(status)) == ("Failed", "RanksFailed", ["collected", "failed"])
    assert "no trace of rank 1: rank 1: the job was restarted before the trace was written" in status.message


def test_a_rank_that_makes_no_more_steps_is_named() -> None:
    capture = Capture().agreed()
    capture.seen = CaptureObservation(reports=(report(0), report(1, age_s=61.0)))
    capture.answer("armed", "recording")
    status = capture.step().status
    assert status.phase == "Failed"
    assert "rank 1 has completed no step after step 100" in status.message


def test_a_job_that_ends_or_a_corrupt_trace_fails_the_capture() -> None:
    ended = Capture().agreed()
    assert "the job is Cancelled before the trace" in ended.step(problem="the job is Cancelled").status.message
    corrupt = Capture().agreed()
    corrupt.store(0, 1, is_valid=False)
    assert "corrupt: truncated" in corrupt.step().status.message


def test_ranks_with_the_same_reason_are_named_together() -> None:
    capture = Capture(spec=TraceCaptureSpec(job="llama", kind="Memory"))
    capture.step()
    capture.answer("failed", "failed", reason="no GPU is used")
    assert capture.step().status.message == "ranks 0, 1: no GPU is used"


def test_ranks_without_a_step_are_to_be_asked_again_later() -> None:
    seen = CaptureObservation(reports=(report(0, step=0, phase="setup"), report(1, step=0, phase="setup")))
    assert Capture(seen=seen).step().status.message == (
        "ranks 0, 1 have not completed a step of this attempt (phase setup); try again after the first step"
    )


def test_a_rank_that_cannot_take_part_fails_the_capture_at_once_with_its_reason() -> None:
    capture = Capture(spec=TraceCaptureSpec(job="llama", kind="Memory"))
    request = capture.step().request
    assert request is not None
    assert request.options == ("snapshot",)
    capture.answer("armed", "failed", reason="no GPU is used")
    progress = capture.step()
    assert (progress.status.reason, progress.status.message) == ("RanksFailed", "rank 1: no GPU is used")
    assert progress.request is not None
    assert progress.request.cancelled


def test_a_capture_of_memory_succeeds_when_the_snapshot_of_each_rank_is_stored() -> None:
    capture = Capture(spec=TraceCaptureSpec(job="llama", kind="Memory")).agreed()
    capture.answer("written", "written")
    capture.store(0, 1)  # traces of the same steps are not what was requested
    assert states(capture.step().status) == ["written", "written"]
    capture.store(0, 1, is_snapshot=True)
    status = capture.step().status
    assert (status.phase, [entry.file for entry in status.ranks]) == (
        "Succeeded", [f"traces/memory/rank-{rank}.pickle.gz" for rank in (0, 1)],
    )  # fmt: skip
    assert status.message.startswith("2 memory snapshots of steps ")


def test_a_finished_capture_does_not_change() -> None:
    capture = Capture().agreed()
    capture.store(0, 1)
    ended = capture.step().status
    assert advance(capture.target, ended, NO_RANKS, "the job is Failed", 5000.0) == CaptureProgress(ended)


def test_a_caller_that_was_restarted_continues_with_the_status_alone() -> None:
    capture = Capture()
    capture.step()
    read_again = TraceCaptureStatus.model_validate_json(capture.status.model_dump_json(by_alias=True))
    again = replace(capture, status=read_again)
    again.answer("armed", "armed")
    assert again.step().status.phase == "Agreed"
    assert again.status.start_step == capture.status.start_step


def test_a_withdrawn_capture_sends_the_last_proposal_as_cancelled() -> None:
    capture = Capture()
    assert cancel_request(capture.target, capture.status) is None
    capture.step()
    withdrawn = cancel_request(capture.target, capture.status)
    assert withdrawn is not None
    assert (withdrawn.proposal, withdrawn.cancelled) == (1, True)


def test_a_job_that_claims_more_ranks_than_a_capture_has_is_refused_at_once() -> None:
    capture = Capture(seen=CaptureObservation(reports=(report(0, world_size=1_000_000),)))
    capture.step()
    assert (capture.status.phase, capture.status.reason) == ("Failed", "TooManyRanks")
    assert "1000000 ranks" in capture.status.message


def test_a_rank_that_goes_on_without_writing_its_trace_fails() -> None:
    capture = Capture().agreed()
    end = capture.status.end_step or 0
    capture.answer("written", "recording")
    capture.seen = replace_reports(capture.seen, step=end + 8 + 599)  # 0.1 s each
    assert capture.step(after_s=60.0).status.phase == "Recording"
    capture.seen = replace_reports(capture.seen, step=end + 8 + 601)
    capture.step()
    assert states(capture.status) == ["written", "failed"]
    assert "has not written its trace" in capture.status.ranks[1].reason


@pytest.mark.parametrize("step_time_s", [0.1, 86_400.0])
def test_a_capture_ends_whatever_the_ranks_report(step_time_s: float) -> None:
    capture = Capture().agreed()
    capture.seen = replace_reports(capture.seen, step=1, step_time_s=step_time_s)
    capture.step(after_s=END_WITHIN_S - 1.0)
    assert states(capture.status) == ["armed", "armed"]
    capture.step(after_s=4 * 20 * MAX_STEP_TIME_S)
    assert capture.status.phase == "Failed"
    assert "of the agreement" in capture.status.message


def replace_reports(seen: CaptureObservation, **changes: object) -> CaptureObservation:
    return CaptureObservation(reports=(report(0, **changes), report(1, **changes)), answers=seen.answers)
