"""Submitting jobs from files, and waiting for them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import FAILURE, JOB_YAML, QUEUE_YAML, queue, status

from muster.cli.manifests import parse_env_overrides
from muster.errors import InvalidSpec


@pytest.fixture
def file(tmp_path: Path, cluster: MemoryClient) -> Path:
    cluster.kept_queues["research"] = queue("research")
    path = tmp_path / "job.yaml"
    path.write_text(JOB_YAML)
    return path


def test_submit_prints_the_queue_and_the_command_to_follow(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("submit", str(file))
    assert (ended.code, ended.err) == (0, "")
    assert {"default/llama", "submitted", "research"} <= {*ended.words}
    assert ended.out.splitlines()[-1].endswith("muster watch llama")
    assert list(cluster.kept_jobs) == ["llama"]


def test_oversubscribe_is_noted_on_the_job(file: Path, muster: Muster) -> None:
    (row,) = muster("submit", str(file), "--oversubscribe", "--json").rows
    assert row["metadata"]["annotations"]["muster.dev/oversubscribe"] == "true"


def test_variables_of_the_command_line_go_into_the_job_and_names_alone_are_noted(
    file: Path, cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "do-not-tell")
    ended = muster("submit", str(file), "--env", "HF_TOKEN", "--env", "A=1", "--json")
    (row,) = ended.rows
    assert {"name": "A", "value": "1"} in row["spec"]["roles"][0]["template"]["spec"]["containers"][0]["env"]
    assert row["metadata"]["annotations"]["muster.dev/pass-environment"] == "HF_TOKEN"
    assert "do-not-tell" not in ended.out + cluster.kept_jobs["llama"].model_dump_json()


@pytest.mark.parametrize("given", ["HF_TOKEN=do-not-tell", "NOT_SET_ANYWHERE", "a b"])
def test_a_variable_that_cannot_be_given_is_refused_before_anything_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster, given: str
) -> None:
    ended = muster("submit", str(file), "--env", given)
    assert (ended.code, cluster.kept_jobs) == (2, {})
    assert "--env" in ended.err
    assert "do-not-tell" not in ended.err


def test_secrets_are_not_written_into_a_job_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "do-not-tell")
    monkeypatch.setenv("HF_HOME", "/hf")
    with pytest.raises(InvalidSpec, match="secretKeyRef"):
        parse_env_overrides(["HF_TOKEN"], on_host=False)
    assert parse_env_overrides(["HF_HOME", "A=1"], on_host=False) == ([], {"HF_HOME": "/hf", "A": "1"})


def test_variables_that_are_not_passed_are_counted_with_the_place_of_their_names(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    cluster.not_passed = [f"NAME_{number}" for number in range(14)]
    (line,) = muster("submit", str(file)).err.splitlines()
    assert "14 variables" in line
    assert "--env NAME_0" in line
    assert "/home/omitted" in line
    cluster.kept_jobs.clear()
    assert muster("submit", str(file), "--json").err == ""


def test_json_hides_the_secrets_of_templates(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    template = "{spec: {containers: [{name: main, image: x, env: [{name: HF_TOKEN, value: do-not-tell}]}]}}"
    text = "{apiVersion: muster.dev/v1alpha1, kind: TrainingJob, metadata: {name: s}, spec: {queue: research, roles: "
    file.write_text(f"{text}[{{name: t, template: {template}}}]}}}}")
    message = [muster("submit", str(file), "--json"), muster("describe", "s", "--json"), muster("jobs", "--json")]
    message += [muster("cancel", "s", "--json"), muster("describe", "s")]
    assert [ended.code for ended in message] == [0] * 5
    assert all("do-not-tell" not in ended.out + ended.err for ended in message)


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
    assert (ended.code, {"default/llama", "would", "research"} <= {*ended.words}) == (0, True)
    assert "watch" not in ended.words
    assert cluster.kept_jobs == {}


def test_when_one_job_of_several_is_refused_none_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    file.write_text(
        JOB_YAML + "---\n" + JOB_YAML.replace("llama", "other").replace("queue: research", "queue: reserch")
    )
    ended = muster("submit", str(file), "--json")
    assert (ended.code, ended.error["reason"], ended.error["field"]) == (3, "QueueNotFound", "spec.queue")
    assert ended.error["message"].startswith(f"{file}:15: job other: ")
    assert all(name in ended.error["message"] for name in ("reserch", "'research'"))
    assert cluster.kept_jobs == {}


def test_a_name_that_is_there_twice_is_invalid_and_none_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    other = file.with_name("other.yaml")
    other.write_text(file.read_text())
    ended = muster("submit", str(file), str(other), "--json")
    assert (ended.code, ended.error["field"]) == (2, "metadata.name")
    assert all(place in ended.error["message"] for place in ("default/llama", f"{file}:3", f"{other}:3"))
    assert cluster.kept_jobs == {}


def test_a_refusal_as_json_goes_to_stderr(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("queue: research", "queue: nope"))
    ended = muster("submit", str(file), "--json")
    assert (ended.code, ended.out) == (3, "")
    assert (ended.error["reason"], ended.error["field"]) == ("QueueNotFound", "spec.queue")


def test_malformed_yaml_is_invalid_input_with_line_and_column(file: Path, muster: Muster) -> None:
    file.write_text("a: [1\nb: 2\n")
    ended = muster("submit", str(file))
    assert (ended.code, f"{file}:2:2: " in ended.err) == (2, True)


def test_an_unknown_field_is_invalid_input_with_the_field_in_the_json(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("roles:", "rolls:"))
    ended = muster("submit", str(file), "--json")
    assert (ended.code, ended.error["field"], "'roles'" in ended.error["message"]) == (2, "spec.rolls", True)


def test_a_missing_file_is_invalid_input(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("submit", "nowhere.yaml", "--json")
    assert (ended.code, ended.error["reason"], "nowhere.yaml" in ended.error["message"]) == (2, "FileError", True)


def test_a_queue_in_a_file_of_jobs_is_invalid_input(file: Path, muster: Muster) -> None:
    file.write_text(QUEUE_YAML)
    ended = muster("submit", str(file), "--json")
    assert (ended.code, ended.error["field"], "'research'" in ended.error["message"]) == (2, "kind", True)


def test_options_override_the_file(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    muster("submit", str(file), "--priority", "7", "--max-runtime", "2h", "--trace-steps", "20:25", "-n", "team-a")
    made = cluster.kept_jobs["llama"]
    assert (made.spec.priority, made.spec.max_runtime_seconds, made.metadata.namespace) == (7, 7200, "team-a")
    assert made.spec.trace is not None
    assert (made.spec.trace.start_step, made.spec.trace.steps) == (20, 5)


@pytest.mark.parametrize(
    ("option", "value", "field"),
    [
        ("--max-runtime", "2 hours", "--max-runtime"),
        ("--max-runtime", "0", "--max-runtime"),
        ("--trace-steps", "25:20", "--trace-steps"),
        ("--queue", "A B", "spec.queue"),
        ("--priority", "abc", "--priority"),
    ],
)
def test_wrong_options_are_invalid_input(file: Path, muster: Muster, option: str, value: str, field: str) -> None:
    ended = muster("submit", str(file), option, value)
    assert (ended.code, field in ended.err, repr(value) in ended.err) == (2, True, True)
    assert muster("submit", str(file), option, value, "--json").error["field"] == field


def test_wait_ends_with_the_jobs_outcome(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    cluster.films["llama"] = [status("Running"), status("Succeeded")]
    assert muster("submit", str(file), "--wait").code == 0
    cluster.kept_jobs.clear()
    cluster.films["llama"] = [status("Running"), status("Failed", "Error", "pod 0 ended with 1")]
    ended = muster("submit", str(file), "--wait")
    assert (ended.code, ended.out.splitlines()[2]) == (1, "default/llama Failed")
    assert "pod 0 ended with 1 (Error)" in ended.out
    assert ended.out.rstrip().endswith("muster describe llama")


def test_wait_for_a_cancelled_job_ends_when_its_processes_have_ended(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    cluster.films["llama"] = [status("Running"), status("Terminating", "Cancelled"), status("Cancelled", "Cancelled")]
    ended = muster("submit", str(file), "--wait")
    assert (ended.code, ended.out.splitlines()[2]) == (1, "default/llama Cancelled")


def test_wait_prints_the_reason_of_a_pending_job(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    waits = status("Pending", "QuotaExhausted", "needs 8 GPUs, 4 are free", queuePosition=2)
    cluster.films["llama"] = [waits, waits, status("Running"), status("Succeeded")]
    message = muster("submit", str(file), "--wait").out
    assert message.count("needs 8 GPUs, 4 are free") == 1


def test_wait_prints_each_restart_with_its_cause(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    failure = {"pod": "llama-trainer-0-abcde", "exitCode": 3}
    cluster.films["llama"] = [
        status("Running"),
        status("Running", restarts=1, attempt=1, lastFailure=failure),
        status("Pending", "Preempted", "by other", restarts=1, attempt=1, lastFailure=failure),
        status("Running", restarts=1, attempt=2, lastFailure=failure),
        status("Succeeded", restarts=1, attempt=2),
    ]
    lines = muster("submit", str(file), "--wait").out.splitlines()
    assert [line for line in lines if line.startswith(("restarts", "attempt"))] == [
        "restarts (1 of 3): pod llama-trainer-0-abcde ended with 3",
        "attempt 2",
    ]
    assert any("Preempted" in line and "by other" in line for line in lines), lines


def test_wait_prints_the_reason_of_a_failure_and_the_next_command(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    cluster.films["llama"] = [status("Failed", "TooManyRestarts", "no restart is left", lastFailure=FAILURE)]
    ended = muster("submit", str(file), "--wait", "-n", "team-a")
    head, reason, code, log, command = ended.out.splitlines()[2:]
    assert head == "team-a/llama Failed"
    assert "ValueError: [red]bad[/red] loss; no restart is left (TooManyRestarts)" in reason
    assert code.split()[-1] == "3"
    assert log.endswith("ValueError: [red]bad[/red] loss")
    assert command.endswith("muster describe team-a/llama")


def test_submit_to_a_cluster_warns_of_a_script_that_may_record_no_trace(
    file: Path, cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.cli.objects.selected_context", lambda: "prod")
    assert "spec.trace may record nothing" in muster("submit", str(file), "--trace-steps", "20:25").err
    cluster.kept_jobs.clear()
    assert muster("submit", str(file)).err == ""


def with_command(file: Path, *words: str) -> None:
    """The job of the file with this command."""
    document = yaml.safe_load(file.read_text())
    document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["command"] = list(words)
    file.write_text(yaml.safe_dump(document))


LAUNCHER = ("python", "-m", "muster_components.launch", "--nproc", "2", "--")
TRAINER = ("-m", "muster_components.trainer", "--data", "texts")


@pytest.mark.parametrize("launcher", [("python",), LAUNCHER], ids=["Python", "Muster's launcher"])
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--model", "nonsense"), {"--model", "nonsense", "gpt:10m"}),
        (("--model", "gpt:10m", "--stepz", "3"), {"--stepz", "--steps"}),
        (("--model", "gpt:10m", "--steps=many"), {"--steps", "many"}),
    ],
)
def test_flags_that_the_trainer_rejects_are_refused_before_anything_is_submitted(
    file: Path,
    cluster: MemoryClient,
    muster: Muster,
    launcher: tuple[str, ...],
    flags: tuple[str, ...],
    named: set[str],
) -> None:
    with_command(file, *launcher, *TRAINER, *flags)
    ended = muster("submit", str(file))
    assert (ended.code, cluster.kept_jobs) == (2, {})
    assert named <= {word.rstrip("?") for word in ended.words}, ended.err
    assert "job.yaml" in ended.err


def test_steps_to_trace_after_the_last_step_of_the_trainer_are_refused(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", "--steps", "10")
    ended = muster("submit", str(file), "--trace-steps", "11:13", "--json")
    assert (ended.code, cluster.kept_jobs, ended.error["field"]) == (2, {}, "spec.trace.startStep")
    assert "11:13" in ended.error["message"]
    assert muster("submit", str(file), "--trace-steps", "10:13").code == 0, "the trace has the steps that there are"


def test_ranks_to_trace_without_steps_to_trace_are_refused(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", "--trace_ranks", "0")
    ended = muster("submit", str(file), "--json")
    assert (ended.code, cluster.kept_jobs) == (2, {})
    assert "--trace_ranks 0 requires --trace_steps" in ended.error["message"]
    assert muster("submit", str(file), "--trace-steps", "10:13").code == 0


def test_steps_to_trace_may_be_in_a_variable_of_the_container(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", "--trace_ranks", "0")
    assert muster("submit", str(file), "--env", "MUSTER_TRACE_STEPS=10:13").code == 0


def test_the_flags_of_a_traced_job_are_checked_once(
    file: Path, cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from muster_components.trainer import submission

    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", "--steps", "10")
    checked: list[list[str]] = []

    def record(arguments: list[str], **_layout: object) -> None:
        checked.append(arguments)

    monkeypatch.setattr(submission, "rejection", record)
    assert muster("submit", str(file), "--trace-steps", "5:7").code == 0
    assert checked == [["--trace_steps=5:7", "--data", "texts", "--model", "gpt:10m", "--steps", "10"]]


def test_a_rejected_flag_of_a_traced_job_is_named_instead_of_the_trace(
    file: Path, cluster: MemoryClient, muster: Muster
) -> None:
    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", "--steps", "many")
    ended = muster("submit", str(file), "--trace-steps", "5:7", "--json")
    assert (ended.code, cluster.kept_jobs) == (2, {})
    assert ended.error["field"] == "spec.roles[0].template.spec.containers[0].command"


@pytest.mark.parametrize(
    "command",
    [
        (*LAUNCHER, *TRAINER, "--model", "gpt:10m", "--steps", "3"),
        (*LAUNCHER, *TRAINER, "--model", "$(MODEL)"),
        (*LAUNCHER, *TRAINER, "--help"),
        ("python", "train.py", "--model", "nonsense"),
    ],
    ids=["valid", "a variable that the kubelet expands", "help", "another program"],
)
def test_other_commands_are_submitted(
    file: Path, cluster: MemoryClient, muster: Muster, command: tuple[str, ...]
) -> None:
    with_command(file, *command)
    assert (muster("submit", str(file)).code, list(cluster.kept_jobs)) == (0, ["llama"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--parallel", "fsdp=8"), {"fsdp=8", "8", "4"}),
        (("--parallel", "pp=2,fsdp", "--pipeline_schedule", "ZBVZeroBubble"), {"ZBVZeroBubble", "Interleaved1F1B"}),
        (("--cuda_graph",), {"--cuda_graph"}),
        (("--seq_len", "33", "--parallel", "tp=2,fsdp=2"), {"--seq_len", "33"}),
    ],
    ids=["ranks", "compiled pipeline schedule", "several ranks", "sequence length"],
)
def test_what_the_ranks_of_a_job_cannot_run_is_refused_before_it_is_submitted(
    file: Path, cluster: MemoryClient, muster: Muster, flags: tuple[str, ...], named: set[str]
) -> None:
    """Two pods of two processes, on GPUs."""
    with_command(file, *LAUNCHER, *TRAINER, "--model", "gpt:10m", *flags)
    ended = muster("submit", str(file))
    assert (ended.code, cluster.kept_jobs) == (2, {})
    assert named <= {word.strip(",;") for word in ended.words}, ended.err
    assert "containers[0].command" in ended.err


def test_a_name_replaces_that_of_the_file(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    assert muster("submit", str(file), "--name", "other").code == 0
    assert list(cluster.kept_jobs) == ["other"]
    ended = muster("submit", str(file), "--name", "No Name", "--json")
    assert (ended.code, ended.error["field"]) == (2, "metadata.name")


def test_a_name_is_for_one_job(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML + "---\n" + JOB_YAML.replace("llama", "second"))
    ended = muster("submit", str(file), "--name", "other", "--json")
    assert (ended.code, ended.error["field"]) == (2, "--name")


def test_generate_name_is_a_new_name_for_each_submission(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("name: llama", "generateName: llama-"))
    assert [muster("submit", str(file)).code for _ in range(2)] == [0, 0]
    assert len(cluster.kept_jobs) == 2
    assert all(name.startswith("llama-") and len(name) == 12 for name in cluster.kept_jobs)
    assert muster("submit", str(file), "--name", "mine").code == 0
    assert "mine" in cluster.kept_jobs


def test_apply_needs_a_name(file: Path, muster: Muster) -> None:
    file.write_text(JOB_YAML.replace("name: llama", "generateName: llama-"))
    ended = muster("apply", str(file), "--json")
    assert (ended.code, ended.error["field"]) == (2, "metadata.name")


def test_replace_deletes_the_job_of_the_same_name_first(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    assert muster("submit", str(file), "--replace").code == 0
    before = cluster.kept_jobs["llama"]
    assert muster("submit", str(file)).code == 3
    assert muster("submit", str(file), "--replace", "--priority", "7").code == 0
    assert cluster.kept_jobs["llama"] is not before
    assert cluster.kept_jobs["llama"].spec.priority == 7


def test_a_replacement_that_would_be_refused_deletes_nothing(file: Path, cluster: MemoryClient, muster: Muster) -> None:
    assert muster("submit", str(file)).code == 0
    before = cluster.kept_jobs["llama"]
    ended = muster("submit", str(file), "--replace", "--queue", "reserch", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "QueueNotFound")
    (row,) = muster("submit", str(file), "--replace", "--dry-run", "--json").rows
    assert row["metadata"]["name"] == "llama"
    assert cluster.kept_jobs["llama"] is before
