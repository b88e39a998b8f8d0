"""submit, jobs, describe, cancel, suspend, resume."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import JOB_YAML, QUEUE_YAML, job, placement, queue, status

from muster.cli.views.job_words import last_words

FAILURE = {"pod": "llama-trainer-1", "exitCode": 3, "logTail": "step 1\nValueError: [red]bad[/red] loss\x1b[0m\n\n"}


@pytest.fixture
def file(tmp_path: Path, cluster: MemoryClient) -> Path:
    cluster.kept_queues["research"] = queue("research")
    path = tmp_path / "job.yaml"
    path.write_text(JOB_YAML)
    return path


def test_submit_says_where_the_job_went_and_how_to_follow_it(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("submit", str(file))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "trainingjob default/llama submitted to queue research",
        "follow it with: muster watch llama",
    ]
    assert list(cluster.kept_jobs) == ["llama"]


def test_submit_as_json_prints_a_list_of_objects(file: Path, muster: Muster) -> None:
    (row,) = muster("submit", str(file), "--json").rows
    assert (row["kind"], row["metadata"]["name"], row["spec"]["queue"]) == ("TrainingJob", "llama", "research")


def test_submit_takes_a_file_from_stdin(
    file: Path, cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert muster("submit", "-").code == 0
    assert list(cluster.kept_jobs) == ["llama"]


def test_a_dry_run_submits_nothing(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("submit", str(file), "--dry-run")
    assert (ended.code, ended.out) == (0, "trainingjob default/llama would be submitted to queue research\n")
    assert cluster.kept_jobs == {}


def test_when_one_job_of_several_is_refused_none_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    file.write_text(
        JOB_YAML + "---\n" + JOB_YAML.replace("llama", "other").replace("queue: research", "queue: reserch")
    )
    ended = muster("submit", str(file))
    assert ended.code == 3
    assert ended.err == (
        f"error: {file}:15: job other: spec.queue: queue 'reserch' does not exist;"
        " did you mean 'research'? (QueueNotFound)\n"
    )
    assert cluster.kept_jobs == {}


def test_a_name_that_is_there_twice_is_invalid_and_none_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    other = file.with_name("other.yaml")
    other.write_text(file.read_text())
    ended = muster("submit", str(file), str(other))
    assert ended.code == 2
    assert f"error: metadata.name: two of the jobs are default/llama ({file}:3 and {other}:3);" in ended.err
    assert cluster.kept_jobs == {}


def test_a_refusal_as_json_goes_to_stderr(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("queue: research", "queue: nope"))
    ended = muster("submit", str(file), "--json")
    assert (ended.code, ended.out) == (3, "")
    error = json.loads(ended.err)["error"]
    assert (error["reason"], error["field"]) == ("QueueNotFound", "spec.queue")


def test_malformed_yaml_is_invalid_input_with_line_and_column(file: Path, muster: Muster) -> None:
    file.write_text("a: [1\nb: 2\n")
    ended = muster("submit", str(file))
    assert ended.code == 2
    assert f"{file}:2:2: malformed YAML" in ended.err


def test_an_unknown_field_is_invalid_input_with_the_field_in_the_json(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("roles:", "rolls:"))
    ended = muster("submit", str(file), "--json")
    assert ended.code == 2
    assert '"field": "spec.rolls"' in ended.err
    assert "did you mean 'roles'?" in ended.err


def test_a_missing_file_is_invalid_input(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("submit", "nowhere.yaml")
    assert (ended.code, ended.err) == (2, "error: nowhere.yaml: No such file or directory (FileError)\n")


def test_a_queue_in_a_file_of_jobs_is_invalid_input(file: Path, muster: Muster) -> None:
    file.write_text(QUEUE_YAML)
    ended = muster("submit", str(file))
    assert ended.code == 2
    assert "Queue 'research' is no job; `muster apply" in ended.err


def test_options_count_instead_of_what_the_file_says(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    muster("submit", str(file), "--priority", "7", "--max-runtime", "2h", "--trace-steps", "20:25", "-n", "team-a")
    made = cluster.kept_jobs["llama"]
    assert (made.spec.priority, made.spec.max_runtime_seconds, made.metadata.namespace) == (7, 7200, "team-a")
    assert made.spec.trace is not None
    assert (made.spec.trace.start_step, made.spec.trace.steps) == (20, 5)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--max-runtime", "2 hours", "--max-runtime: '2 hours' is no duration; write one such as 2h"),
        ("--max-runtime", "0", "--max-runtime: '0' lasts no time; write at least 1s"),
        ("--trace-steps", "25:20", "--trace-steps: '25:20' ends before it begins; write FIRST:END, as 20:26 or 20:25"),
        ("--queue", "A B", "spec.queue: 'A B' is no name"),
        ("--priority", "abc", "Invalid value for '--priority': 'abc' is no whole number; write one such as 10 or -5"),
    ],
)
def test_wrong_options_are_invalid_input(file: Path, muster: Muster, option: str, value: str, told: str) -> None:
    ended = muster("submit", str(file), option, value)
    assert ended.code == 2
    assert told in ended.err
    error = json.loads(muster("submit", str(file), option, value, "--json").err)["error"]
    assert error["field"] in (option, told.partition(":")[0])


def test_wait_ends_with_the_jobs_outcome(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.films["llama"] = [status("Running"), status("Succeeded")]
    assert muster("submit", str(file), "--wait").code == 0
    cluster.kept_jobs.clear()
    cluster.films["llama"] = [status("Running"), status("Failed", "Error", "pod 0 ended with 1")]
    ended = muster("submit", str(file), "--wait")
    assert (ended.code, ended.out.splitlines()[2:]) == (
        1,
        ["default/llama Failed", "  Error: pod 0 ended with 1", "  see: muster describe llama"],
    )


def test_wait_says_why_the_job_waits_as_watch_does(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    waits = status("Pending", "QuotaExhausted", "needs 8 GPUs, 4 are free", queuePosition=2)
    cluster.films["llama"] = [waits, waits, status("Running"), status("Succeeded")]
    told = muster("submit", str(file), "--wait").out
    assert told.count("needs 8 GPUs, 4 are free") == 1


def test_below_the_rule_that_closes_torchruns_summary_the_exception_is_what_was_said_last() -> None:
    tail = "RuntimeError: no room\nraise ChildFailedError(\nx.ChildFailedError: \n  exitcode: 1\n=====\n"
    ended = job("llama", status("Failed", lastFailure=FAILURE | {"logTail": tail}))
    assert last_words(ended) == "RuntimeError: no room"


def test_wait_tells_why_a_job_failed_and_where_to_look(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.films["llama"] = [status("Failed", "TooManyRestarts", "no restart is left", lastFailure=FAILURE)]
    ended = muster("submit", str(file), "--wait", "-n", "team-a")
    assert ended.out.splitlines()[2:] == [
        "team-a/llama Failed",
        "  TooManyRestarts: no restart is left",
        "  exit code 3",
        "  last line of the log: ValueError: [red]bad[/red] loss",
        "  see: muster describe team-a/llama",
    ]


# ---- jobs


def test_without_jobs_the_table_says_what_to_do(cluster: MemoryClient, muster: Muster) -> None:
    assert muster("jobs").out == "No jobs. Submit one: muster submit FILE.yaml\n"
    assert muster("jobs", "--json").rows == []


def test_jobs_are_listed_running_first_then_waiting_by_position_then_ended(
    cluster: MemoryClient, muster: Muster
) -> None:
    message = "needs 16 GPUs of h200; 8 of 24 left"
    cluster.kept_jobs = {
        "done": job("done", status("Succeeded", startedAt=NOW, finishedAt=NOW + 65)),
        "second": job("second", status("Pending", "QuotaExceeded", message, queuePosition=2)),
        "first": job("first", status("Pending", "NoRoom", "needs 2 nodes", queuePosition=1)),
        "runs": job("runs", status("Running", placement=placement("n1", "n2"), podsWanted=2, podsReady=2)),
    }
    ended = muster("jobs")
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "runs", "first", "second", "done"]
    assert "● Running" in lines[1]
    assert "2/2" in lines[1]
    assert lines[1].rstrip().endswith("n1, n2")
    assert "#1 NoRoom: needs 2 nodes" in lines[2]
    assert "1m05s" in lines[4]
    assert [row["metadata"]["name"] for row in muster("jobs", "--json").rows] == ["runs", "first", "second", "done"]


def test_jobs_can_be_narrowed_by_queue_and_phase(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", queue="x"), "b": job("b", status("Running"))}
    assert [row["metadata"]["name"] for row in muster("jobs", "--json", "--phase", "running").rows] == ["b"]
    assert [row["metadata"]["name"] for row in muster("jobs", "--json", "-q", "x").rows] == ["a"]
    ended = muster("jobs", "--phase", "runing")
    assert (ended.code, "'runing' is not known; write one of Pending" in ended.err) == (2, True)


def test_markup_in_a_message_is_shown_as_it_is(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", status("Failed", "Error", "[red]x[/red] [/]"))}
    assert "[red]x[/red] [/]" in muster("jobs").out


def test_the_table_shows_what_a_failed_job_wrote_last_shortened(cluster: MemoryClient, muster: Muster) -> None:
    launcher = "muster: rank 1 failed first, after 3.2 s: exit code 1; its last line: OSError: no such text\n"
    cluster.kept_jobs = {
        "a": job("a", status("Failed", "Error", "exit code 3", lastFailure=FAILURE)),
        "b": job("b", status("Failed", "Error", "exit code 1", lastFailure=FAILURE | {"logTail": launcher})),
        "c": job("c", status("Failed", "Error", "exit code 1", lastFailure=FAILURE | {"logTail": "x" * 4096})),
    }
    out = " ".join(muster("jobs").out.split())
    assert "Error: exit code 3; ValueError: [red]bad[/red] loss" in out
    assert "Error: exit code 1; OSError: no such text" in out
    assert "x" * 200 not in out.replace(" ", "")


@pytest.mark.parametrize("columns", range(48, 161, 8))
def test_a_name_is_shown_whole_and_no_line_is_too_long_however_narrow_the_terminal(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    long = "a-name-of-thirty-six-characters-in-a1"
    cluster.kept_jobs = {
        long: job(long, status("Failed", "TooManyRestarts", "no restart is left", lastFailure=FAILURE)),
        "b": job("b", status("Pending", "QuotaExceeded", "needs 16 GPUs of h200", queuePosition=3)),
    }
    monkeypatch.setenv("COLUMNS", str(columns))
    out = muster("jobs").out
    assert all(len(line) <= columns for line in out.splitlines())
    assert long in out
    assert ("PRIO" in out, "QUEUE" in out) == (columns >= 120, columns >= 104)


# ---- describe


def test_describe_shows_why_a_job_waits(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Pending", "QuotaExceeded", "needs 16 GPUs", queuePosition=3))
    out = muster("describe", "llama").out
    assert "default/llama  ○ Pending" in out
    assert "QuotaExceeded: needs 16 GPUs" in out
    assert "number 3 in queue research" in out


def test_describe_shows_placement_progress_failure_and_events(cluster: MemoryClient, muster: Muster) -> None:
    failure = {"pod": "llama-trainer-1", "node": "n2", "exitCode": 139, "logTail": "boom\n"}
    cluster.kept_jobs["llama"] = job(
        status=status(
            "Running",
            placement=placement("n1", "n2"),
            attempt=1,
            restarts=1,
            lastFailure=failure,
            lastCheckpoint={"step": 40, "at": NOW},
        )
    )
    cluster.kept_beats = [
        {"rank": 1, "attempt": 1, "step": 41, "steps": 60, "loss": 2.5, "tokens_per_s": 12_300.0, "eta_s": 70.0},
        {"rank": 0, "attempt": 0, "step": 59, "steps": 60},
    ]
    cluster.kept_events = [{"at": NOW, "type": "Warning", "reason": "Restarted", "message": "exit 139", "count": 3}]
    out = muster("describe", "llama").out
    assert "step 41/60  loss 2.5  12.3k tokens/s  ETA 1m10s" in out
    assert "trainer 1  n2" in out
    assert "exit code 139 (SIGSEGV)" in out
    assert "boom" in out
    assert "1; 1 of 3 restarts used" in out
    assert "step 40," in out
    assert "exit 139 (×3)" in out


def test_describe_as_json_is_a_list_of_one(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    assert muster("describe", "default/llama", "--json").rows[0]["metadata"]["name"] == "llama"


def test_a_job_that_does_not_exist_is_not_found(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("describe", "nobody")
    assert (ended.code, ended.err) == (3, "error: there is no job 'nobody' in namespace 'default' (NotFound)\n")


# ---- cancel, suspend, resume


@pytest.mark.parametrize(("verb", "told"), [("cancel", "cancelled"), ("suspend", "suspended"), ("resume", "resumed")])
def test_verbs_on_jobs_act_on_each(cluster: MemoryClient, muster: Muster, verb: str, told: str) -> None:
    cluster.kept_jobs = {"a": job("a"), "b": job("b")}
    ended = muster(verb, "a", "default/b")
    assert cluster.asked == [(verb, "a", "default"), (verb, "b", "default")]
    assert ended.out.splitlines() == [f"trainingjob default/a {told}", f"trainingjob default/b {told}"]


@pytest.mark.parametrize(("verb", "done"), [("cancel", "cancelled"), ("suspend", "suspended"), ("resume", "resumed")])
def test_when_one_of_several_jobs_does_not_exist_none_is_touched_and_that_is_said(
    cluster: MemoryClient, muster: Muster, verb: str, done: str
) -> None:
    cluster.kept_jobs = {"a": job("a")}
    ended = muster(verb, "a", "nobody", "none")
    assert (ended.code, cluster.asked, ended.out) == (3, [], "")
    assert ended.err == (
        "error: there is no job 'nobody' in namespace 'default'; there is no job 'none' in namespace 'default';"
        f" nothing was {done} (NotFound)\n"
    )


def test_when_one_of_several_jobs_is_finished_none_is_touched_and_that_is_said(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs = {"a": job("a"), "b": job("b", status("Succeeded"))}
    ended = muster("cancel", "a", "b")
    assert (ended.code, cluster.asked) == (3, [])
    assert ended.err == "error: job 'b' is finished (Succeeded); nothing was cancelled (Conflict)\n"
