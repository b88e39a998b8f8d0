"""What a user who waits for a job without its log is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from tests.torchx.clients import LoggedScheduler, Ranks
from tests.torchx.jobs import PLACE, ended, job, running
from tests.tracing.run_folders import run_folder

from muster.api.spec import TraceRequest, TraceStatus, TrainingJob, TrainingJobStatus
from muster.errors import ClusterError, DaemonError, MusterError, NotFound
from muster.torchx import scheduler
from muster.torchx.errors import WatchInterrupted
from muster.torchx.status import ProgressReporter
from muster.tracing.report import build
from muster.workload import conditions, transitions


def heartbeat(step: int, **fields: Any) -> dict[str, Any]:
    return {"rank": 0, "attempt": 0, "step": step, "steps": 60, "loss": 4.0, "phase": "train", "at": 0.0, **fields}


def test_a_wait_prints_start_compilation_some_steps_and_the_end() -> None:
    ranks: Any = Ranks()
    now, lines = [0.0], []
    waiting = ProgressReporter(clock=lambda: now[0])
    for second in range(150):
        now[0] = float(second)
        step = max(0, second - 70)
        phase = {"loss": None, "phase": "setup" if second < 5 else "compile", "at": 5.0 if second >= 5 else 0.0}
        ranks.heartbeat_documents = (
            [] if second < 2 else [heartbeat(0, **phase)] if not step else [heartbeat(min(step, 60))]
        )
        lines += [(second, line) for line in waiting.next_lines("a-1", job(running()), ranks)]
    over = transitions.finish(running(), conditions.COMPLETE, "Completed", "all 2 exited with 0", 3.0)
    over = over.model_copy(update={"started_at": 2.0, "finished_at": 3.0})
    for _ in range(2):
        lines += [(150, line) for line in waiting.next_lines("a-1", job(over), ranks)]
    hint = "; the first time this can take a minute or more"
    assert lines == [
        (0, "runs on n1, n2"),
        (2, "setting up for 2s"),
        (5, f"compiling{hint}"),
        (35, f"compiling for 30s{hint}"),
        (65, f"compiling for 1m00s{hint}"),
        *((second, f"step {second - 70}/60  loss 4") for second in range(75, 130, 10)),
        (135, "step 60/60  loss 4"),
        (150, "succeeded: all 2 exited with 0; run folder /runs/a-1"),
    ]


def test_a_wait_for_a_traced_job_ends_with_summary_findings_and_path_of_its_report(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path / "run", slow_rank=1)
    report, page = build(run_dir, name="a-1"), run_dir / "report" / "report.html"
    over = ended(transitions.finish(running(), conditions.COMPLETE, "Completed", "all 2 exited with 0", 3.0))
    untraced = job(over.model_copy(update={"started_at": 2.0}))
    traced = untraced.spec.model_copy(update={"trace": TraceRequest(start_step=20, steps=3)})
    unreported = untraced.model_copy(update={"spec": traced})
    reported = unreported.model_copy(
        update={"status": unreported.status.model_copy(update={"traces": TraceStatus(report=str(page), files=2)})}
    )
    cluster: Any = Reported(run_dir, reported)
    result, summary, headline, *findings, last = ProgressReporter().next_lines("a-1", unreported, cluster)
    assert result == "succeeded: all 2 exited with 0"
    assert summary.startswith("40 steps  loss 5.00 → ")
    assert headline == report.headline
    assert findings == list(report.findings) != []
    assert last == f"report {page}"


@pytest.mark.parametrize("error", [NotFound("job 'a-1' does not exist"), ClusterError("the daemon was stopped")])
def test_a_job_whose_report_can_no_longer_be_known_keeps_its_result(error: MusterError) -> None:
    over = ended(transitions.finish(running(), conditions.COMPLETE, "Completed", "all 2 exited with 0", 3.0))
    untraced = job(over.model_copy(update={"started_at": 2.0}))
    traced = untraced.spec.model_copy(update={"trace": TraceRequest(start_step=20, steps=3)})

    class Gone(Ranks):
        def job(self, name: str, namespace: str = "default") -> TrainingJob:
            raise error

    lines = ProgressReporter().next_lines("a-1", untraced.model_copy(update={"spec": traced}), cast(Any, Gone()))
    assert list(lines) == ["succeeded: all 2 exited with 0", f"the report is not known: {error}"]


class Reported(Ranks):
    """A cluster on this host whose job has a report the next time it is read."""

    def __init__(self, folder: Path, reported: TrainingJob) -> None:
        super().__init__()
        self.folder, self.reported = folder, reported

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return self.reported

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        return self.folder


def test_each_attempt_prints_its_start_and_ignores_earlier_heartbeats() -> None:
    ranks: Any = Ranks([heartbeat(40)])
    waiting = ProgressReporter(clock=lambda: 0.0)
    assert list(waiting.next_lines("a-1", job(running()), ranks))[-1] == "step 40/60  loss 4"
    second = running().model_copy(update={"attempt": 1})
    assert list(waiting.next_lines("a-1", job(second), ranks)) == ["runs on n1, n2, attempt 1"]
    assert list(waiting.next_lines("a-1", job(second), ranks)) == []


def test_a_pending_job_prints_no_start() -> None:
    ranks: Any = Ranks()
    waiting = ProgressReporter(clock=lambda: 0.0)
    assert list(waiting.next_lines("a-1", job(transitions.admit(TrainingJobStatus(), PLACE, 1.0)), ranks)) == []
    ended = transitions.finish(TrainingJobStatus(), conditions.CANCELLED, "Cancelled", "cancelled by the user", 3.0)
    assert list(waiting.next_lines("b-2", job(ended), ranks)) == [], "processes of it may still run"
    ended = conditions.with_status_fields(ended, {"finished_at": 4.0})
    assert list(waiting.next_lines("b-2", job(ended), ranks)) == ["cancelled: cancelled by the user"]


class Gone(Ranks):
    """A cluster that shows the job, and then has nothing more to say."""

    def __init__(self, error: MusterError) -> None:
        super().__init__()
        self.error = error

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return job(running())

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        raise self.error


def test_a_cluster_that_goes_away_while_a_job_is_asked_how_far_it_is_ends_the_watch_in_words() -> None:
    with pytest.raises(WatchInterrupted, match="default:a-1 can no longer be watched: the daemon is closing"):
        LoggedScheduler(Gone(DaemonError("the daemon is closing"))).describe("default:a-1")
    assert LoggedScheduler(Gone(NotFound("there is no job 'a-1'"))).describe("default:a-1") is None


@dataclass
class Upgraded(Ranks):
    """A cluster whose API server does not answer `silent` times."""

    silent: int = 3

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        self.silent -= 1
        if self.silent >= 0:
            raise ClusterError("https://a does not answer", reason="Unreachable")
        return job(running())


def test_a_wait_continues_while_the_api_server_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "_PAUSE_S", 0.0)
    message = LoggedScheduler(Upgraded()).describe("default:a-1")
    assert message is not None
    assert message.state.name == "RUNNING"
    monkeypatch.setattr(scheduler, "UNREACHABLE_TIMEOUT_S", 0.0)
    with pytest.raises(WatchInterrupted, match="default:a-1 can no longer be watched: https://a does not answer"):
        LoggedScheduler(Upgraded(silent=10**9)).describe("default:a-1")


def test_a_single_request_fails_at_once_if_the_server_is_unavailable() -> None:
    with pytest.raises(ClusterError, match="https://a does not answer"):
        LoggedScheduler(Upgraded()).describe("default:b-2")
