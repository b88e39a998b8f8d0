"""watch and logs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, placement, status

from muster.api.spec import ObjectMeta, Queue, TrainingJob, TrainingJobStatus
from muster.cli.views.watch import LossCurve, WatchFrame, change_lines, render_frame
from muster.cli.watch import _print_changes
from muster.errors import NotFound
from muster.heartbeats.progress import current_heartbeat


def heartbeat(step: int, **fields: Any) -> dict[str, Any]:
    return {"rank": 0, "attempt": 0, "step": step, "steps": 60, "loss": 4.0, "phase": "train"} | fields


def test_watch_prints_a_line_for_each_change_and_ends_with_success(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [
        status("Pending", "QuotaExceeded", "needs 2, 1 left", queuePosition=2),
        status("Pending", "QuotaExceeded", "needs 2, 0 left", queuePosition=2),
        status("Pending", "QuotaExceeded", "needs 2, 1 left", queuePosition=1),
        status("Admitted", placement=placement("n1")),
        status("Running", placement=placement("n1"), startedAt=NOW),
        status("Running", placement=placement("n1"), startedAt=NOW, lastCheckpoint={"step": 20, "at": NOW}),
        status("Succeeded", startedAt=NOW, finishedAt=NOW + 125),
    ]
    cluster.stored_heartbeats = [heartbeat(60, phase="done", tokens_per_s=12_345.0, mfu=0.41)]
    ended = muster("watch", "llama")
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert [line[0] for line in lines[1:]] == ["○", "○", "◔", "●", "s", "c", "✓"]  # symbols; step, checkpoint
    for line, part in zip(lines[1:], ("number 2", "number 1", "n1", "n1", "60/60", "20", "2m05s"), strict=True):
        assert part in line


@pytest.mark.parametrize(
    "after",
    [status("Pending", "Preempted", "by other", lastCheckpoint={"step": 60, "at": NOW}),
     status("Running", restarts=1, attempt=1, lastCheckpoint={"step": 60, "at": NOW})],
    ids=["eviction", "restart"],
)  # fmt: skip
def test_a_checkpoint_is_shown_before_what_happened_after_it(after: TrainingJobStatus) -> None:
    before = status("Running", lastCheckpoint={"step": 50, "at": NOW})
    frames = [WatchFrame(job(status=one), None, NOW) for one in (before, after)]
    first, second = (line.plain for line in change_lines(*frames))
    assert first == "checkpoint at step 60"
    assert second.startswith(("○", "restarts (1 of 3)"))


def test_each_checkpoint_whose_step_is_unknown_is_shown() -> None:
    statuses = [status("Running", lastCheckpoint={"at": at}) for at in (NOW, NOW + 60)]
    frames = [WatchFrame(job(status=one), None, NOW) for one in (status("Running"), *statuses)]
    lines = [[line.plain for line in change_lines(*pair)] for pair in pairwise(frames)]
    assert lines == [["checkpoint"], ["checkpoint"]]


def test_watch_ends_with_the_log_of_what_failed_and_exit_code_one(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    failure = {"pod": "llama-trainer-0-abcde", "exitCode": 3, "logTail": "Traceback\nValueError: [no] markup\n"}
    cluster.films["llama"] = [
        status("Running"),
        status("Pending", restarts=1, attempt=1, lastFailure=failure),
        status("Failed", "TooManyRestarts", "3 restarts were used up", restarts=3, lastFailure=failure),
    ]
    ended = muster("watch", "llama")
    assert ended.code == 1
    restarted = next(line for line in ended.out.splitlines() if line.startswith("restarts (1 of 3)"))
    assert "llama-trainer-0-abcde" in restarted
    end, pod, *log = ended.out.splitlines()[-4:]
    assert end.startswith("✗ Failed")
    assert end.endswith("  ValueError: [no] markup; 3 restarts were used up (TooManyRestarts)")
    assert "llama-trainer-0-abcde" in pod
    assert log == ["Traceback", "ValueError: [no] markup"]


def test_watch_of_a_cancelled_job_ends_when_its_processes_have_ended(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    why = ("Cancelled", "cancelled by the user")
    cluster.films["llama"] = [
        status("Running", startedAt=NOW),
        status("Terminating", *why, startedAt=NOW),
        status("Cancelled", *why, startedAt=NOW, finishedAt=NOW + 30),
    ]
    ended = muster("watch", "llama")
    assert ended.code == 1
    terminating, cancelled = ended.out.splitlines()[2:]
    assert terminating == "◌ terminating"
    assert cancelled.startswith("⊘ Cancelled after 30s")


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_watch_and_wait_go_on_while_processes_of_a_finished_job_still_end(
    phase: str, cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [status("Running"), status(phase, finishedAt=None), status(phase, ranSeconds=9)]
    ended = muster("watch", "llama", "--json")
    assert (ended.code, ended.rows[0]["status"]["ranSeconds"]) == (int(phase == "Failed"), 9)


def test_watch_as_json_prints_the_job_as_it_ended(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [status("Running"), status("Failed")]
    ended = muster("watch", "llama", "--json")
    assert (ended.code, ended.rows[0]["status"]["phase"]) == (1, "Failed")


def test_watching_a_job_that_is_deleted_meanwhile_ends_as_not_found(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.films["llama"] = [status("Running")]
    ended = muster("watch", "llama", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NotFound")
    assert "default/llama" in ended.error["message"]


@pytest.mark.parametrize("verb", ["watch", "submit"])
def test_a_job_removed_at_its_end_has_an_unknown_result(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    one = job(ttlSecondsAfterFinished=0)

    def removed(name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        yield one.model_copy(update={"status": status("Running")})
        raise NotFound(f"there is no job {name!r} in namespace {namespace!r}")

    monkeypatch.setattr(cluster, "watch", removed)
    if verb == "watch":
        cluster.kept_jobs["llama"] = one
        ended = muster("watch", "llama")
    else:
        (tmp_path / "job.yaml").write_text(json.dumps(one.model_dump(by_alias=True, exclude_none=True)))
        cluster.kept_queues["research"] = Queue(metadata=ObjectMeta(name="research"))
        ended = muster("submit", str(tmp_path / "job.yaml"), "--wait")
    assert (ended.code, "ttlSecondsAfterFinished: 0" in ended.err) == (3, True), ended.err


def drawn(sight: WatchFrame, curve: LossCurve | None = None, width: int = 100) -> str:
    console = Console(width=width, no_color=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_frame(sight, curve or LossCurve(), width))
    return console.export_text()


def test_the_frame_of_a_pending_job_shows_its_queue_position() -> None:
    waiting = status("Pending", queuePosition=2, estimatedStart=NOW + 130)
    text = drawn(WatchFrame(job(status=waiting), None, NOW + 10))
    assert all(part in text for part in (" 10s", "number 2", "research", "in 2m00s"))


def test_the_picture_of_a_running_job_has_a_bar_figures_and_a_curve() -> None:
    curve = LossCurve()
    for step, loss in ((10, 8.0), (20, 6.0), (30, 4.0)):
        curve = curve.with_heartbeat(heartbeat(step, loss=loss))
    figures = heartbeat(
        30, tokens_per_s=1234.0, step_time_s=0.25, mfu=0.5, peak_memory_bytes=3 * 2**30, eta_s=7.5, world_size=2,
        collectives={"mesh_fsdp": 4000, "default_pg": 96},
    )  # fmt: skip
    text = drawn(WatchFrame(job(status=status("Running")), figures, NOW), curve)
    assert "█" * 25 + "░" * 25 + " step 30/60  50%  ETA 8s" in text
    assert "1.2k tokens/s · 250 ms/step · MFU 50.0% · peak memory 3.0 GiB · 4.1k collectives · 2 ranks" in text
    assert "█▅▁ loss 4 from 8" in text


@pytest.mark.parametrize(("phase", "expected"), [("setup", "setting up for 35s"), ("compile", "compiling for 35s")])
def test_before_the_first_step_the_frame_shows_the_phase_and_its_duration(phase: str, expected: str) -> None:
    frame = WatchFrame(job(status=status("Running")), heartbeat(0, phase=phase, loss=None, at=NOW), NOW + 35)
    assert drawn(frame).strip()[2:].startswith(expected)


def test_a_running_job_without_heartbeat_shows_that_no_step_was_reported() -> None:
    text = drawn(WatchFrame(job(status=status("Running", admittedAt=NOW)), None, NOW + 7))
    assert text.strip()[2:].startswith("running for 7s; ")


def test_into_a_pipe_compilation_is_printed_at_once_and_every_30_s() -> None:
    one, out = job(status=status("Running")), io.StringIO()
    compiling = heartbeat(0, phase="compile", loss=None, at=NOW)
    sights = [WatchFrame(one, compiling, NOW + seconds) for seconds in (0, 4, 10, 22, 29, 30, 59)]
    _print_changes(
        iter([*sights, WatchFrame(one, heartbeat(1), NOW + 59.5), WatchFrame(one, heartbeat(2), NOW + 65)]),
        Console(file=out, width=120),
    )
    lines = [line.partition(";")[0] for line in out.getvalue().splitlines()]
    assert lines[2:] == ["compiling", "compiling for 30s", "step 1/60  loss 4", "step 2/60  loss 4"]


RESUMED = status("Running", attempt=1, lastCheckpoint={"step": 20, "at": NOW})


@pytest.mark.parametrize(
    ("first_one", "expected"),
    [
        (heartbeat(20, attempt=1, phase="compile", loss=None), ["resumed from step 20"]),
        (heartbeat(0, attempt=1, phase="compile", loss=None), ["restarted from step 0"]),
        (heartbeat(23, attempt=1), ["resumed from step 20"]),
        (heartbeat(7, attempt=1), ["attempt 1 is at step 7"]),
        (heartbeat(0, attempt=1, phase="setup", loss=None), []),
    ],
)
def test_a_resumed_job_prints_once_from_which_step_it_resumes(first_one: dict[str, Any], expected: list[str]) -> None:
    one = job(status=RESUMED)
    for before in (None, heartbeat(0, attempt=1, phase="setup", loss=None)):
        lines = change_lines(WatchFrame(one, before, NOW), WatchFrame(one, first_one, NOW + 1))
        assert [line.plain for line in lines] == expected
    if expected:
        assert (
            list(change_lines(WatchFrame(one, first_one, NOW + 1), WatchFrame(one, heartbeat(30, attempt=1), NOW + 2)))
            == []
        )


def test_a_heartbeat_of_an_earlier_attempt_is_no_progress_of_this_one() -> None:
    one = job(status=RESUMED)
    assert current_heartbeat([heartbeat(40)], one.status.attempt) is None
    newest = heartbeat(0, attempt=1, phase="setup", loss=None)
    assert current_heartbeat([heartbeat(40), newest], one.status.attempt) == newest


def test_a_curve_forgets_what_a_resume_does_again() -> None:
    curve = (
        LossCurve()
        .with_heartbeat(heartbeat(10, loss=3.0))
        .with_heartbeat(heartbeat(20, loss=2.0))
        .with_heartbeat(heartbeat(15, loss=2.5))
    )
    assert curve.losses == ((10, 3.0), (15, 2.5))


# ---- logs


@pytest.fixture
def logged(cluster: MemoryClient) -> MemoryClient:
    cluster.kept_jobs["llama"] = job(status=status("Running"))
    cluster.logs = {("trainer", 0): ["step 1", "[bold]"], ("trainer", 1): ["step 1 too"]}
    return cluster


def test_logs_of_several_pods_have_a_prefix_per_pod(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama").out.splitlines() == [
        "trainer-0 │ step 1",
        "trainer-0 │ [bold]",
        "trainer-1 │ step 1 too",
    ]


def test_the_log_of_one_pod_is_printed_as_it_is(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "--index", "0").out == "step 1\n[bold]\n"


def test_logs_can_be_narrowed_by_a_regular_expression(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "--regex", "too$").out == "trainer-1 │ step 1 too\n"


def test_following_several_pods_shows_all_lines_of_each_in_order(logged: MemoryClient, muster: Muster) -> None:
    lines = muster("logs", "llama", "-f").out.splitlines()
    assert [line for line in lines if line.startswith("trainer-0")] == ["trainer-0 │ step 1", "trainer-0 │ [bold]"]
    assert len(lines) == 3


def test_logs_ask_for_attempt_and_times(logged: MemoryClient, muster: Muster) -> None:
    muster("logs", "llama", "-i", "1", "--attempt", "2", "--since", "2026-09-21T14:13:20Z")
    assert logged.calls == [("logs", "trainer", 1, 2, NOW, None, False)]


def test_logs_of_an_attempt_may_be_of_replicas_and_roles_that_are_no_more(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "-i", "7", "--attempt", "0").code == 0
    assert muster("logs", "llama", "--role", "reader", "-i", "1", "--attempt", "0").code == 0
    assert [calls[1:4] for calls in logged.calls] == [("trainer", 7, 0), ("reader", 1, 0)]


def test_logs_are_those_of_the_replicas_that_an_elastic_job_has_at_its_present_size(
    logged: MemoryClient, muster: Muster
) -> None:
    logged.kept_jobs["llama"] = job(status=status("Running", placement=placement("n1"), attempt=1))
    assert muster("logs", "llama").out == "step 1\n[bold]\n"
    assert muster("logs", "llama", "-i", "1").out == "step 1 too\n", "its last one, of an earlier attempt"
    logged.kept_jobs["llama"] = job(status=status("Running", placement=placement("n1", "n2"), attempt=2))
    assert muster("logs", "llama", "--tail", "1").out.splitlines() == ["trainer-0 │ [bold]", "trainer-1 │ step 1 too"]


def test_of_a_pending_job_the_newest_attempt_is_shown_with_a_note_on_other_replicas(
    logged: MemoryClient, muster: Muster
) -> None:
    logged.kept_jobs["llama"] = job(status=status("Suspended", attempt=2))
    logged.logged = {("trainer", 0): 1, ("trainer", 1): 0}
    ended = muster("logs", "llama")
    assert ended.out == "step 1\n[bold]\n"
    assert "trainer-1" in ended.err
    assert ended.err.rstrip().endswith("muster logs llama --attempt 0")
    assert logged.calls == [("logs", "trainer", 0, 1, None, None, False)]
    named = muster("logs", "llama", "-i", "0", "-i", "1")
    assert named.out.splitlines() == [
        "trainer-0.attempt-1 │ step 1",
        "trainer-0.attempt-1 │ [bold]",
        "trainer-1.attempt-0 │ step 1 too",
    ]
    assert named.err == ""
    rows = muster("logs", "llama", "-i", "0", "-i", "1", "--tail", "1", "--json").rows
    assert [(row["index"], row["attempt"]) for row in rows] == [(0, 1), (1, 0)]


def test_logs_as_json_are_a_list_of_lines(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "-i", "1", "--json").rows == [
        {"role": "trainer", "index": 1, "attempt": 0, "line": "step 1 too"}
    ]


def test_logs_show_the_last_lines_of_each_pod(logged: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "--tail", "1").out.splitlines() == ["trainer-0 │ [bold]", "trainer-1 │ step 1 too"]
    ended = muster("logs", "llama", "--tail", "-1")
    assert (ended.code, "--tail" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (
            status("Pending", "QuotaExceeded", "needs 2, 1 left", queuePosition=2),
            {"2", "research", "QuotaExceeded", "needs"},
        ),
        (status("Suspended"), {"suspended", "resume"}),
        (status("Admitted"), {"starting"}),
    ],
)
@pytest.mark.parametrize("option", [[], ["-f"], ["--json"]])
def test_logs_of_a_job_without_pods_say_on_stderr_why_it_waits(
    cluster: MemoryClient, muster: Muster, state: TrainingJobStatus, named: set[str], option: list[str]
) -> None:
    cluster.kept_jobs["llama"] = job(status=state)
    ended = muster("logs", "llama", *option)
    assert (ended.code, len(ended.err.splitlines())) == (0, 1)
    assert {"default/llama", *named} <= {*ended.words}
    assert ended.out == ("[]\n" if option == ["--json"] else "")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (status("Running", startedAt=NOW), "running"),
        (status("Succeeded", startedAt=NOW), "wrote"),
        (status("Cancelled", "Cancelled", "by its user"), "never"),
    ],
)
def test_logs_without_a_line_say_why_unless_lines_were_left_out(
    cluster: MemoryClient, muster: Muster, state: TrainingJobStatus, word: str
) -> None:
    cluster.kept_jobs["llama"] = job(status=state)
    assert {"default/llama", word} <= {*muster("logs", "llama").words}
    assert muster("logs", "llama", "--since", "10m").err == ""


def test_logs_of_a_job_that_waits_for_its_next_attempt_are_those_of_the_last(
    logged: MemoryClient, muster: Muster
) -> None:
    logged.kept_jobs["llama"] = job(status=status("Pending", "Evicted"))
    ended = muster("logs", "llama", "-i", "1")
    assert (ended.out, ended.err) == ("step 1 too\n", "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--role", "missing"], ["(trainer)", "'missing'"]),
        (["--index", "7"], ["0 to 1", "7"]),
        (["--since", "yesterday"], ["'yesterday'"]),
        (["--grep", "("], ["'('"]),
    ],
)
def test_wrong_options_of_logs_are_invalid(
    logged: MemoryClient, muster: Muster, words: list[str], named: list[str]
) -> None:
    ended = muster("logs", "llama", *words, "--json")
    assert (ended.code, ended.error["field"]) == (2, words[0])
    assert ended.error["reason"] in ("Usage", "Invalid")
    assert all(part in ended.error["message"] for part in named)


def test_the_time_of_a_job_that_was_restarted_is_that_of_all_attempts(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job("llama")
    film = status("Failed", "Error", "", restarts=3, ranSeconds=60, startedAt=NOW, finishedAt=NOW + 7)
    cluster.films["llama"] = [film]
    assert "Failed after 1m07s, 3 restarts" in muster("watch", "llama").out


def test_the_lines_of_one_rank_are_those_with_its_mark(cluster: MemoryClient, muster: Muster) -> None:
    two = job("llama")
    container = two.spec.roles[0].template.spec.containers[0]
    container.command[:] = ["python", "-m", "muster_components.launch", "--nproc", "2", "--", "train.py"]
    container.args[:] = []
    cluster.kept_jobs = {"llama": two}
    cluster.logs = {("trainer", 0): ["zero", "[r1] one"], ("trainer", 1): ["[r2] two", "[r3] three", "[r3] loss"]}
    assert muster("logs", "llama", "--rank", "0").out == "zero\n"
    assert muster("logs", "llama", "--rank", "1").out == "[r1] one\n"
    assert muster("logs", "llama", "--rank", "3", "--grep", "loss").out == "[r3] loss\n"
    assert muster("logs", "llama", "--rank", "4", "--json").error["field"] == "--rank"
    assert muster("logs", "llama", "--rank", "1", "--index", "0").code == 2
