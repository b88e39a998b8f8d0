"""Jobs in tables and one by one, and the verbs on them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import FAILURE, job, placement, status

from muster.api.spec import TrainingJobStatus, WorkloadRecord
from muster.cli.views.job_text import PHASE_STYLES
from muster.client import JobList, UnreadableJobItem
from muster.errors import Refused

# ---- jobs


def test_without_jobs_the_next_command_is_suggested(cluster: MemoryClient, muster: Muster) -> None:
    assert "muster submit FILE.yaml" in muster("jobs", "--all").out
    assert muster("jobs", "--json").rows == []


def test_jobs_are_listed_running_first_then_waiting_by_position_then_ended(
    cluster: MemoryClient, muster: Muster
) -> None:
    message = "needs 16 GPUs of h200; 8 of 24 left"
    cluster.kept_jobs = {
        "done": job("done", status("Succeeded", startedAt=NOW, finishedAt=NOW + 65)),
        "second": job("second", status("Pending", "QuotaExceeded", message, queuePosition=2)),
        "first": job("first", status("Pending", "InsufficientResources", "needs 2 nodes", queuePosition=1)),
        "runs": job("runs", status("Running", placement=placement("n1", "n2"), podsWanted=2, podsReady=2)),
    }
    ended = muster("jobs", "--all")
    lines = ended.out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "runs", "first", "second", "done"]
    assert "● Running" in lines[1]
    assert "2/2" in lines[1]
    assert lines[1].rstrip().endswith("n1, n2")
    assert "#1 InsufficientResources: needs 2 nodes" in lines[2]
    assert "1m05s" in lines[4]
    assert [row["metadata"]["name"] for row in muster("jobs", "--json").rows] == ["runs", "first", "second", "done"]


def test_an_elastic_job_that_has_fewer_pods_than_it_may_have_shows_both_numbers(
    cluster: MemoryClient, muster: Muster
) -> None:
    roles = [{"name": "a", "replicas": 3, "minReplicas": 1, "template": {"spec": {"containers": [{"command": ["x"]}]}}}]
    few = status("Running", placement=placement("n1"), podsWanted=1, podsReady=1)
    cluster.kept_jobs = {"runs": job("runs", few, roles=roles), "waits": job("waits", roles=roles)}
    runs, waits = muster("jobs", "--all").out.splitlines()[1:]
    assert " 1/3 " in runs
    assert " 1-3 " in waits


def test_of_what_ended_the_newest_comes_first_and_before_it_what_still_stops(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs = {
        "older": job("older", status("Succeeded", finishedAt=NOW + 5)),
        "stops": job("stops", status("Terminating", "Cancelled", "cancelled by the user", startedAt=NOW)),
        "newer": job("newer", status("Failed", finishedAt=NOW + 9)),
    }
    lines = muster("jobs", "--all").out.splitlines()
    assert [line.split()[0] for line in lines] == ["JOB", "stops", "newer", "older"]


def test_a_job_that_was_preempted_says_so_until_it_is_admitted_again(cluster: MemoryClient, muster: Muster) -> None:
    def evicted(is_true: bool) -> list[dict[str, Any]]:
        condition = {"type": "Evicted", "status": str(is_true), "reason": "Preempted", "message": "preempted for b"}
        return [{**condition, "lastTransitionTime": NOW}]

    for name, phase, is_true in (("waits", "Pending", True), ("stops", "Admitted", True), ("runs", "Running", False)):
        found = status(phase, "QuotaExceeded", "needs 8 GPUs")
        conditions = [*(one.model_dump(by_alias=True) for one in found.conditions), *evicted(is_true)]
        found = status(phase, conditions=conditions)
        cluster.kept_jobs[name] = job(name, found)
    lines = {line.split()[0]: line for line in muster("jobs", "--all").out.splitlines()}
    assert [name for name in ("waits", "stops", "runs") if "Preempted" in lines[name] and " ago" in lines[name]] == [
        "waits",
        "stops",
    ]


def test_jobs_can_be_narrowed_by_queue_and_phase(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", queue="x"), "b": job("b", status("Running"))}
    assert [row["metadata"]["name"] for row in muster("jobs", "--json", "--phase", "running").rows] == ["b"]
    assert [row["metadata"]["name"] for row in muster("jobs", "--json", "-q", "x").rows] == ["a"]


def test_jobs_of_a_queue_that_does_not_exist_are_not_found(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", queue="gone")}
    cluster.queue_rows = [{"name": "research"}]
    ended = muster("jobs", "-q", "reserch")
    assert (ended.code, ended.out) == (3, "")
    assert "did you mean 'research'" in ended.err
    assert "No jobs" in muster("jobs", "-q", "research").out
    assert "gone" in muster("jobs", "-q", "gone").out, "its jobs are there"
    assert "No jobs" in muster("jobs", "-q", "gone", "--phase", "Failed").out


def test_jobs_of_a_queue_that_does_not_exist_are_not_found_in_json_too(cluster: MemoryClient, muster: Muster) -> None:
    cluster.queue_rows = [{"name": "research"}]
    ended = muster("jobs", "-q", "nosuch", "--json")
    assert (ended.code, ended.out, json.loads(ended.err)["error"]["reason"]) == (3, "", "NotFound")
    assert muster("jobs", "-q", "research", "--json").rows == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--phase", "terminating"], "phase Terminating"),
        (["-q", "research"], "queue research"),
        (["-n", "team"], "namespace team"),
    ],
)
def test_an_empty_result_names_the_filter_and_counts_all_jobs(
    cluster: MemoryClient, muster: Muster, words: list[str], named: str
) -> None:
    cluster.queue_rows = [{"name": "research"}]
    cluster.kept_jobs = {name: job(name, queue="x") for name in ("a", "b", "c")}
    ended = muster("jobs", *words)
    assert (ended.code, named in ended.out, "3 jobs" in ended.out, "Submit one" in ended.out) == (0, True, True, False)


def test_without_permission_for_all_namespaces_the_given_one_is_counted(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listing(namespace: str | None = None) -> JobList:
        if namespace is None:
            raise Refused("jobs may not be listed", reason="Forbidden")
        return JobList(cluster.jobs(namespace), [])

    monkeypatch.setattr(cluster, "job_list", listing)
    cluster.kept_jobs = {"a": job("a")}
    ended = muster("jobs", "-n", "default", "--phase", "failed")
    assert (ended.code, {"1", "default"} <= {*ended.words}) == (0, True)
    none = muster("jobs", "-n", "team")
    assert {"team", "submit"} <= {*none.words}


def test_a_job_that_cannot_be_read_is_named_beside_the_others_and_hides_none(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs = {"runs": job("runs", status("Running"))}
    document = {"kind": "TrainingJob", "metadata": {"name": "half", "namespace": "team"}, "spec": {"queue": "x"}}
    cluster.unreadable = [UnreadableJobItem(document, "spec.roles: is required")]
    ended = muster("jobs", "--all")
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == ["JOB", "runs"]
    assert len(ended.err.splitlines()) == 1
    assert "team/half" in ended.err
    assert "spec.roles: is required" in ended.err
    rows = muster("jobs", "--json").rows
    assert (rows[0]["metadata"]["name"], rows[1]) == (
        "runs",
        document | {"unreadable": "spec.roles: is required"},
    )
    assert muster("jobs", "--json").err == ""


def test_jobs_that_cannot_be_read_are_narrowed_by_queue_and_phase_too(cluster: MemoryClient, muster: Muster) -> None:
    meta = {"name": "half", "namespace": "team"}
    cluster.unreadable = [
        UnreadableJobItem({"metadata": meta, "spec": {"queue": "x"}, "status": {"phase": "Running"}}, "odd")
    ]
    assert [row["metadata"]["name"] for row in muster("jobs", "--json", "-q", "x", "--phase", "running").rows] == [
        "half"
    ]
    cluster.queue_rows = [{"name": "y"}]
    for narrowed in (("-q", "y"), ("--phase", "Pending")):
        ended = muster("jobs", *narrowed)
        assert (ended.code, ended.err, "No jobs" in ended.out) == (0, "", True)
    assert muster("jobs", "--all").out == "", "there is one"


def test_several_phases_may_be_asked_for_at_once_in_the_table_and_in_json(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs = {phase: job(phase.lower(), status(phase)) for phase in ("Running", "Pending", "Failed")}
    for written in ("Running,Pending", "pending, RUNNING,"):
        assert [row["metadata"]["name"] for row in muster("jobs", "--json", "--phase", written).rows] == [
            "running",
            "pending",
        ]
        assert [line.split()[0] for line in muster("jobs", "--phase", written).out.splitlines()[1:]] == [
            "running",
            "pending",
        ]


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("runing", {"runing", "Running"}),
        ("Running,pendig", {"pendig", "Pending"}),
        ("x", set(PHASE_STYLES)),
        (",", set(PHASE_STYLES)),
    ],
)
def test_a_phase_that_there_is_not_is_refused_with_the_nearest_one(
    cluster: MemoryClient, muster: Muster, written: str, named: set[str]
) -> None:
    ended = muster("jobs", "--phase", written)
    assert (ended.code, named <= {word.strip("?'") for word in ended.words}) == (2, True), ended.err
    error = muster("jobs", "--phase", written, "--json").error
    assert (error["reason"], error["field"]) == ("Usage", "--phase")


def test_the_table_shows_how_long_all_attempts_ran_together(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {
        "paused": job("paused", status("Suspended", ranSeconds=65)),
        "again": job("again", status("Failed", ranSeconds=60, startedAt=NOW, finishedAt=NOW + 10)),
    }
    ran = {line.split()[0]: line for line in muster("jobs", "--all").out.splitlines()}
    assert "1m05s" in ran["paused"]
    assert "1m10s" in ran["again"]


def test_the_table_shows_progress_from_the_status(cluster: MemoryClient, muster: Muster) -> None:
    progressed = {"step": 40, "steps": 60, "loss": 2.5, "attempt": 0, "at": NOW}
    cluster.kept_jobs = {
        "message": job("message", status("Running", placement=placement("n1"), progress=progressed)),
        "anew": job("anew", status("Running", placement=placement("n2"), progress=progressed, attempt=1)),
    }
    lines = {line.split()[0]: line for line in muster("jobs", "--all").out.splitlines()}
    assert "40/60" in lines["message"].split()
    assert "loss 2.5" in lines["message"]
    assert "step" not in lines["anew"]


def test_the_table_marks_a_job_that_was_not_yet_processed(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", TrainingJobStatus())}
    assert "NotReconciled" in muster("jobs", "--all").words


def test_markup_in_a_message_is_shown_as_it_is(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a", status("Failed", "Error", "[red]x[/red] [/]"))}
    assert "[red]x[/red] [/]" in muster("jobs", "--all").out


def test_the_table_shows_what_a_failed_job_wrote_last_shortened(cluster: MemoryClient, muster: Muster) -> None:
    launcher = "muster: rank 1 failed first, after 3.2 s: exit code 1; its last line: OSError: no such text\n"
    cluster.kept_jobs = {
        "a": job("a", status("Failed", "Error", "exit code 3", lastFailure=FAILURE)),
        "b": job("b", status("Failed", "Error", "exit code 1", lastFailure=FAILURE | {"logTail": launcher})),
        "c": job("c", status("Failed", "Error", "exit code 1", lastFailure=FAILURE | {"logTail": "x" * 4096})),
    }
    out = " ".join(muster("jobs", "--all").out.split())
    assert "ValueError: [red]bad[/red] loss; exit code 3 (Error)" in out
    assert "rank 1: OSError: no such text; exit code 1 (Error)" in out
    assert "exit code 1 (Error); xxxx" in out
    assert "x" * 201 not in out.replace(" ", "")


def test_the_table_begins_with_the_error_that_a_failed_job_wrote(cluster: MemoryClient, muster: Muster) -> None:
    """What follows the cause is long, and the same for most jobs."""
    message = "pod llama-trainer-0-9176c on vm exited with code 2 (Error); a rule of failurePolicy fails the job"
    usage = "usage: prog [--nproc N]\nprog: error: argument --nproc: must be an integer of at least 1; got 'two'\n"
    cluster.kept_jobs = {
        "a": job("a", status("Failed", "FailurePolicy", message, lastFailure=FAILURE | {"logTail": usage})),
        "b": job("b", status("Failed", "FailurePolicy", message, lastFailure=FAILURE | {"logTail": "step 7\n"})),
    }
    out = " ".join(muster("jobs", "--all").out.split())
    error = "prog: error: argument --nproc: must be an integer of at least 1; got 'two'"
    assert f"{error}; {message} (FailurePolicy)" in out
    assert f"{message} (FailurePolicy); step 7" in out


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
    out = muster("jobs", "--all").out
    assert all(len(line) <= columns for line in out.splitlines())
    assert long in out
    below = columns < 80  # then what explains a job has lines of its own, and leaves width for a column
    assert ("PRIO" in out, "QUEUE" in out) == (columns >= 120, columns >= 112)
    assert ("REASON" in out) != below
    if below:
        words = "  ValueError: [red]bad[/red] loss; no restart is left (TooManyRestarts)"
        assert " ".join(out.split()).count(words.strip()) == 1
        assert "\n  ValueError:" in out


def test_the_priority_that_is_shown_is_the_value_of_the_priority_class(cluster: MemoryClient, muster: Muster) -> None:
    seen = status("Running", priority=1000)
    cluster.kept_jobs = {
        "a": job("a", seen, priorityClassName="high"),
        "b": job("b", status("Pending"), priorityClassName="high"),
        "c": job("c", status("Pending"), priority=5),
    }
    rows = [line.split() for line in muster("jobs", "--all").out.splitlines()]
    shown = rows[0].index("PRIO")
    assert [row[shown] for row in rows[1:4]] == ["1000", "-", "5"]
    assert "priority 1000" in muster("describe", "a").out


# ---- describe


def test_describe_shows_why_a_job_waits(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Pending", "QuotaExceeded", "needs 16 GPUs", queuePosition=3))
    ended = muster("describe", "llama")
    assert {"default/llama", "Pending", "QuotaExceeded", "3", "research"} <= {*ended.words}
    assert "needs 16 GPUs" in ended.out


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
    cluster.stored_heartbeats = [
        {"rank": 1, "attempt": 1, "step": 41, "steps": 60, "loss": 2.5, "tokens_per_s": 12_300.0, "eta_s": 70.0},
        {"rank": 0, "attempt": 0, "step": 59, "steps": 60},
    ]
    cluster.kept_events = [{"at": NOW, "type": "Warning", "reason": "Restarted", "message": "exit 139", "count": 3}]
    ended = muster("describe", "llama")
    assert {"41/60", "2.5", "12.3k", "1m10s", "n2", "139", "SIGSEGV", "boom", "40", "×3"} <= {*ended.words}


def test_describe_shows_the_collectives_per_step_of_the_present_attempt(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Running", placement=placement("n1"), attempt=1))
    rates = ((0, 99.0), (1, 12.5), (1, 48.0))  # attempt and collectives per step of ranks 0, 1 and 2
    cluster.stored_heartbeats = [
        {"rank": i, "attempt": attempt, "collectives_per_step": rate} for i, (attempt, rate) in enumerate(rates)
    ]
    assert "12.5 per step on rank 1 to 48 on rank 2\n" in muster("describe", "llama").out
    cluster.stored_heartbeats = [
        {**one, "collective_bytes_per_step": 3 * 2**30 // (3 - i)} for i, one in enumerate(cluster.stored_heartbeats)
    ]
    assert "12.5 per step on rank 1 to 48 on rank 2, 3.0 GiB\n" in muster("describe", "llama").out


def test_describe_shows_the_last_progress_of_a_cancelled_job(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Cancelled", "Cancelled", "cancelled by the user"))
    cluster.stored_heartbeats = [
        {"rank": 0, "attempt": 0, "step": 22, "steps": 10**5, "phase": "checkpoint", "eta_s": 1e5}
    ]
    out = muster("describe", "llama").out
    assert "  step 22/100000\n" in out
    cluster.stored_heartbeats = [{"rank": 0, "attempt": 0, "phase": "setup"}]
    assert "setup" not in muster("describe", "llama").out


@pytest.mark.parametrize(("phase", "may_change"), [("Pending", True), ("Running", True), ("Succeeded", False)])
def test_describe_says_from_which_folder_the_code_of_a_job_of_this_host_is_read_and_when(
    cluster: MemoryClient, muster: Muster, phase: str, may_change: bool
) -> None:
    submitted = job("llama", status(phase))
    annotations = {"muster.dev/working-directory": "/home/ann/project"}
    meta = submitted.metadata.model_copy(update={"annotations": annotations})
    cluster.kept_jobs = {"llama": submitted.model_copy(update={"metadata": meta})}
    described = " ".join(muster("describe", "llama").out.split())
    assert "code /home/ann/project" in described
    assert ("read when an attempt starts, with all edits until then" in described) == may_change


def test_describe_of_a_job_without_a_folder_of_this_host_has_no_code(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"llama": job("llama")}
    assert "code" not in muster("describe", "llama").words


def test_describe_lists_files_of_experiment_trackers(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    (cluster.run_root / "llama" / "tb").mkdir(parents=True)
    (cluster.run_root / "llama" / "tb" / "events.out.tfevents.1").touch()
    described = " ".join(muster("describe", "llama").out.split())
    assert "TensorBoard tensorboard --logdir" in described
    assert "/llama/tb" in described.replace(" ", "")


def test_describe_as_json_is_a_list_of_one(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job()
    assert muster("describe", "default/llama", "--json").rows[0]["metadata"]["name"] == "llama"


def test_describe_as_json_has_the_progress_that_no_status_has_on_one_host(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs["llama"] = job()
    cluster.stored_heartbeats = [
        {"rank": 0, "attempt": 0, "step": 500, "steps": 600, "loss": 4.25, "eta_s": 21.0, "at": 1000.0}
    ]
    progress = muster("describe", "llama", "--json").rows[0]["status"]["progress"]
    assert (progress["step"], progress["steps"], progress["loss"]) == (500, 600, 4.25)
    assert progress["estimatedRemainingSeconds"] == 21.0


def test_a_job_that_does_not_exist_is_not_found(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("describe", "missing", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NotFound")
    assert "'missing'" in ended.error["message"]


# ---- cancel, suspend, resume


@pytest.mark.parametrize(("verb", "done"), [("cancel", "cancelled"), ("suspend", "suspended"), ("resume", "resumed")])
def test_verbs_on_jobs_act_on_each(cluster: MemoryClient, muster: Muster, verb: str, done: str) -> None:
    cluster.kept_jobs = {"a": job("a"), "b": job("b")}
    ended = muster(verb, "a", "default/b")
    assert cluster.calls == [(verb, "a", "default"), (verb, "b", "default")]
    assert [(line.split()[1], line.split()[-1]) for line in ended.out.splitlines()] == [
        ("default/a", done),
        ("default/b", done),
    ]


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume"])
def test_if_one_of_several_jobs_does_not_exist_none_is_changed(
    cluster: MemoryClient, muster: Muster, verb: str
) -> None:
    cluster.kept_jobs = {"a": job("a")}
    ended = muster(verb, "a", "missing", "none", "--json")
    assert (ended.code, cluster.calls, ended.out, ended.error["reason"]) == (3, [], "", "NotFound")
    assert all(name in ended.error["message"] for name in ("'missing'", "'none'"))


def test_if_one_of_several_jobs_is_finished_none_is_resumed(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"a": job("a"), "b": job("b", status("Succeeded"))}
    ended = muster("resume", "a", "b", "--json")
    assert (ended.code, cluster.calls, ended.error["reason"]) == (3, [], "JobFinished")
    assert {"b", "Succeeded"} <= {*ended.words}


@pytest.mark.parametrize(("verb", "done"), [("cancel", "cancelled"), ("suspend", "suspended")])
def test_of_several_jobs_to_stop_those_that_have_ended_are_named_and_the_others_stopped(
    cluster: MemoryClient, muster: Muster, verb: str, done: str
) -> None:
    cluster.kept_jobs = {"a": job("a", status("Succeeded")), "b": job("b")}
    ended = muster(verb, "a", "b")
    assert (ended.code, cluster.calls) == (0, [(verb, "b", "default")])
    lines = [line.split()[1:] for line in ended.out.splitlines()]
    assert lines[0] == ["default/a", "has", "already", "ended"]
    assert (lines[1][0], lines[1][-1]) == ("default/b", done)
    assert len(muster(verb, "a", "b", "--json").rows) == 2


def test_if_all_jobs_to_cancel_have_ended_or_one_does_not_exist_none_is_changed(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.kept_jobs = {"a": job("a", status("Succeeded")), "b": job("b", status("Failed")), "c": job("c")}
    for names, reason in ((("a", "b"), "JobFinished"), (("a", "c", "missing"), "NotFound")):
        ended = muster("cancel", *names, "--json")
        assert (ended.code, cluster.calls, ended.error["reason"]) == (3, [], reason)


def test_when_the_queue_of_one_of_several_jobs_is_being_deleted_none_is_resumed(
    cluster: MemoryClient, muster: Muster
) -> None:
    cluster.queue_rows = [{"name": "research", "reason": "Deleting"}]
    cluster.kept_jobs = {"a": job("a", queue="other", suspend=True), "b": job("b", queue="research", suspend=True)}
    ended = muster("resume", "a", "b", "--json")
    assert (ended.code, cluster.calls, ended.error["reason"]) == (3, [], "QueueDeleted")


def test_a_repeated_cancel_says_so(cluster: MemoryClient, muster: Muster) -> None:
    stops, over = status("Terminating", "Cancelled"), status("Cancelled", "Cancelled")
    cluster.kept_jobs = {"a": job("a", over, cancel=True), "b": job("b"), "c": job("c", stops, cancel=True)}
    ended = muster("cancel", "a", "b", "c")
    a, b, c = (line.split() for line in ended.out.splitlines())
    assert ended.code == 0
    assert [("already" in line, "being" in line) for line in (a, b, c)] == [(True, False), (False, True), (True, True)]


def test_a_job_whose_processes_are_stopping_is_being_cancelled(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["a"] = job("a", status("Terminating", "Cancelled", "by the user"), cancel=True)
    for ended in (muster("describe", "a"), muster("jobs", "--all")):
        assert "Terminating" in ended.out
        assert "Stopping: by the user" in ended.out
        assert "Cancelled" not in ended.out


def test_objects_of_other_kinds_are_listed_with_their_kind_and_described(cluster: MemoryClient, muster: Muster) -> None:
    admitted = {"type": "Admitted", "status": "False", "reason": "QuotaExceeded", "message": "needs 8 GPUs"}
    record = WorkloadRecord.model_validate(
        {
            "metadata": {"name": "job-batch-12345", "namespace": "default"},
            "spec": {
                "queue": "research",
                "objectRef": {"apiVersion": "batch/v1", "kind": "Job", "name": "batch", "uid": "u"},
            },
            "status": {"queuePosition": 2, "conditions": [{**admitted, "lastTransitionTime": NOW}]},
        }
    )
    cluster.objects = [record]
    listed = muster("jobs", "--all").out
    assert all(word in listed for word in ("KIND", "Job", "batch", "QuotaExceeded: needs 8 GPUs", "#2"))
    described = muster("describe", "batch").out
    assert all(word in described for word in ("default/batch", "QuotaExceeded: needs 8 GPUs", "kubectl describe"))
    assert muster("jobs", "--json").rows[-1]["kind"] == "Workload"


def test_of_the_ended_jobs_those_of_the_last_day_are_listed_unless_more_are_asked_for(
    cluster: MemoryClient, muster: Muster
) -> None:
    now = time.time()
    ends = {"new": now - 60, "days": now - 3 * 86_400, "weeks": now - 30 * 86_400}
    cluster.kept_jobs = {name: job(name, status("Succeeded", finishedAt=at)) for name, at in ends.items()}
    cluster.kept_jobs["runs"] = job("runs", status("Running"))

    def listed(*words: str) -> set[str]:
        return {line.split()[0] for line in muster("jobs", *words).out.splitlines()[1:]}

    assert listed() == {"runs", "new"}
    assert "2 more jobs not shown" in muster("jobs").err
    assert listed("--all") == {"runs", "new", "days", "weeks"}
    assert listed("--since", "7d") == {"runs", "new", "days"}
    assert listed("--ended") == {"new", "days", "weeks"}
    assert listed("--ended", "--since", "7d", "--limit", "1") == {"new"}
    assert len(muster("jobs", "--json").rows) == 4
    assert muster("jobs", "--all", "--since", "7d").code == 2


def test_on_a_terminal_a_reason_takes_one_line(cluster: MemoryClient, muster: Muster) -> None:
    from rich.console import Console

    from muster.cli.views.job_rows import listed_job
    from muster.cli.views.job_table import job_table

    waiting = job("waits", status("Pending", "InsufficientResources", "why " * 100))
    for width in (40, 80, 120):
        console = Console(width=width, no_color=True)
        with console.capture() as captured:
            console.print(job_table([listed_job(waiting)], NOW, width, wide=False))
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        (line,) = (line for line in lines if "why" in line)
        assert line.rstrip().endswith("…")


# ---- columns, order, watching


_CONTAINER = {"command": ["x"], "resources": {"limits": {"nvidia.com/gpu": 8}}}
_GPUS = [{"name": "trainer", "replicas": 2, "template": {"spec": {"containers": [_CONTAINER]}}}]


def _several(cluster: MemoryClient) -> None:
    progress = {"step": 40, "steps": 60, "loss": 2.5, "estimatedRemainingSeconds": 40.0, "at": NOW, "attempt": 0}
    failure = {"pod": "p", "exitCode": 3, "reason": "Error"}
    cluster.kept_jobs = {
        "runs": job(
            "runs", status("Running", startedAt=NOW, progress=progress, placement=placement("n1", "n2")), roles=_GPUS
        ),
        "waits": job("waits", status("Pending", "QuotaExceeded", "needs 8 GPUs"), queue="x", roles=_GPUS),
        "failed": job(
            "failed", status("Failed", startedAt=NOW - 7200, finishedAt=NOW - 3600, lastFailure=failure), roles=_GPUS
        ),
        "done": job("done", status("Succeeded", startedAt=NOW - 600, finishedAt=NOW), roles=_GPUS),
    }


@pytest.fixture
def at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.mark.usefixtures("at_now")
def test_step_eta_and_gpus_have_columns_and_are_not_repeated(cluster: MemoryClient, muster: Muster) -> None:
    _several(cluster)
    header, runs, waits, *_ = muster("jobs").out.splitlines()
    assert {"GPUS", "STEP", "ETA"} <= {*header.split()}
    assert {"16", "40/60", "40s"} <= {*runs.split()}
    assert runs.count("40/60") == 1
    assert "loss 2.5" in runs
    assert "16" in waits.split()


@pytest.mark.usefixtures("at_now")
def test_of_jobs_of_this_host_the_heartbeat_tells_step_and_eta(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs = {"runs": job("runs", status("Running"))}
    cluster.stored_heartbeats = [{"rank": 0, "attempt": 0, "step": 7, "steps": 9, "eta_s": 30.0, "at": NOW - 10}]
    assert {"7/9", "20s"} <= {*muster("jobs").out.split()}


@pytest.mark.usefixtures("at_now")
def test_of_ended_jobs_exit_code_run_time_and_gpu_hours_are_shown(cluster: MemoryClient, muster: Muster) -> None:
    _several(cluster)
    header, done, failed = muster("jobs", "--ended", "--since", "7d").out.splitlines()
    assert {"EXIT", "RUNTIME", "GPU-HOURS"} <= {*header.split()}
    assert {"0", "10m00s", "2.667"} <= {*done.split()}
    assert {"3", "1h00m", "16.000"} <= {*failed.split()}


@pytest.mark.usefixtures("at_now")
def test_columns_and_their_order_can_be_chosen(cluster: MemoryClient, muster: Muster) -> None:
    _several(cluster)
    lines = muster("jobs", "-o", "gpus,job,phase").out.splitlines()
    assert lines[0].split() == ["GPUS", "JOB", "PHASE"]
    assert lines[1].split() == ["16", "runs", "●", "Running"]
    ended = muster("jobs", "-o", "gpu", "--json")
    assert (ended.code, ended.error["field"], "'GPUS'" in ended.error["message"]) == (2, "--columns", True)


@pytest.mark.usefixtures("at_now")
@pytest.mark.parametrize(
    ("column", "order"),
    [("job", ["done", "failed", "runs", "waits"]), ("-job", ["waits", "runs", "failed", "done"]),
     ("-gpu-hours", ["failed", "done", "runs", "waits"]), ("queue", ["runs", "done", "failed", "waits"])],
)  # fmt: skip
def test_jobs_are_sorted_by_a_column(cluster: MemoryClient, muster: Muster, column: str, order: list[str]) -> None:
    _several(cluster)
    assert [line.split()[0] for line in muster("jobs", "--sort", column).out.splitlines()[1:]] == order
    assert [row["metadata"]["name"] for row in muster("jobs", "--sort", column, "--json").rows] == order


def test_a_list_is_redrawn_on_a_terminal_until_it_is_interrupted(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _several(cluster)
    assert muster("jobs", "--watch", "--json").error["field"] == "--watch"
    monkeypatch.setenv("FORCE_COLOR", "1")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        cluster.kept_jobs["new"] = job("new", status("Running"))
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("muster.cli.job_list.time.sleep", pause)
    ended = muster("jobs", "--watch")
    assert (ended.code, len(pauses)) == (130, 2)
    assert "new" in ended.out
