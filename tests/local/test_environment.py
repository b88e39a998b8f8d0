"""What a replica finds in its environment, and what is refused before it could."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.local.small import shell_job

from muster import spec
from muster.errors import InvalidSpec
from muster.local.annotations import SUBMISSION_ANNOTATION, WORKING_DIRECTORY_ANNOTATION, annotate_submitter
from muster.local.client import LocalClient
from muster.local.environment import (
    PodAllocation,
    PodIdentity,
    allowed_environment,
    command_line,
    daemon_environment,
    expand_references,
    interpreter_environment,
    omitted_env_vars,
    pod_environment,
    submitted_environment,
)
from muster.local.home import open_home
from muster.local.job_checks import check_local_support
from muster.local.programs import data_argument, script_argument, unknown_launcher_argument

BASE = {"PATH": "/usr/bin:/bin"}
POD = PodIdentity("job-trainer-1-abcde", "trainer", 1, 4, 2)
SLOT = PodAllocation("/runs/job", ("2", "3"), 23456)


def job_with(container: dict[str, Any], pod: dict[str, Any] | None = None, **fields: Any) -> spec.TrainingJob:
    whole = {"name": "main", "command": ["true"], **container}
    role = {"name": "trainer", "template": {"spec": {"containers": [whole], **(pod or {})}}}
    return spec.TrainingJob.model_validate({"metadata": {"name": "job"}, "spec": {"roles": [role], **fields}})


def test_only_what_is_named_is_passed_on() -> None:
    environ = {
        "HOME": "/h", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "x", "TORCHINDUCTOR_CACHE_DIR": "/c",
        "AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "t", "SSH_AUTH_SOCK": "/s", "PYTHONPATH": "/p", "MUSTER_HOME": "/m",
        "CUDA_VISIBLE_DEVICES": "5", "PATH": "/bin:/venv/bin",
    }  # fmt: skip
    assert allowed_environment(environ, "/venv/bin") == {
        "HOME": "/h", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "x", "TORCHINDUCTOR_CACHE_DIR": "/c",
        "PATH": "/venv/bin:/bin",
    }  # fmt: skip
    assert set(daemon_environment(environ, "/venv/bin")) - set(allowed_environment(environ, "/venv/bin")) == {
        "MUSTER_HOME", "PYTHONPATH", "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip


NEEDED = {
    "HOME": "/h", "PYTHONPATH": "/p", "HF_HOME": "/hf", "HF_TOKEN": "t", "WANDB_API_KEY": "k", "WANDB_MODE": "offline",
    "TRANSFORMERS_CACHE": "/t", "TORCH_LOGS": "x", "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TRITON_CACHE_DIR": "/c",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_DEBUG": "INFO", "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4", "LD_LIBRARY_PATH": "/l", "VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c",
    "TMPDIR": "/tmp", "LANG": "C.UTF-8", "LC_ALL": "C", "http_proxy": "http://u:p@h:1", "HTTPS_PROXY": "x",
    "no_proxy": "y", "NO_PROXY": "z", "all_proxy": "a", "ALL_PROXY": "b", "ACCELERATE_USE_CPU": "true",
    "DS_ACCELERATOR": "cpu", "FSDP_CPU_RAM_EFFICIENT_LOADING": "1", "PL_GLOBAL_SEED": "1",
}  # fmt: skip
DROPPED = {"AWS_SECRET_ACCESS_KEY": "s", "RANK": "3", "MASTER_ADDR": "h", "GITHUB_TOKEN": "g"}
SESSION = {
    "TERM": "xterm",
    "SSH_AUTH_SOCK": "/s",
    "MUSTER_HOME": "/m",
    "PWD": "/",
    "_": "/bin/x",
    "XDG_RUNTIME_DIR": "/",
}


def test_a_job_gets_what_training_needs_of_its_submitters_environment() -> None:
    environ = NEEDED | DROPPED | SESSION | {"PATH": "/bin:/venv/bin"}
    found = submitted_environment(environ, "/venv/bin", ["AWS_SECRET_ACCESS_KEY"])
    assert found == NEEDED | {"PATH": "/venv/bin:/bin", "AWS_SECRET_ACCESS_KEY": "s"}
    assert omitted_env_vars(environ, ["AWS_SECRET_ACCESS_KEY"]) == ["GITHUB_TOKEN", "MASTER_ADDR", "RANK"]


def test_a_variable_that_is_asked_for_and_not_set_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="NOT_SET"):
        submitted_environment({"PATH": "/bin"}, "/venv/bin", ["NOT_SET"])


def test_a_pod_gets_the_contract_of_the_run_folder() -> None:
    job = shell_job("job", "true", grace=40, trace={"startStep": 20, "steps": 5, "ranks": [0, 3]}, queue="research")
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u1", "namespace": "team"})})
    environment = pod_environment(BASE, job, POD, SLOT)
    assert {name: value for name, value in environment.items() if name.startswith(("MUSTER_", "CUDA_"))} == {
        "MUSTER_JOB": "job", "MUSTER_NAMESPACE": "team", "MUSTER_JOB_UID": "u1",
        "MUSTER_POD": "job-trainer-1-abcde", "MUSTER_ROLE": "trainer", "MUSTER_REPLICA": "1", "MUSTER_REPLICAS": "4",
        "MUSTER_ATTEMPT": "2", "MUSTER_RUN_DIR": "/runs/job", "MUSTER_RANK0_HOST": "127.0.0.1",
        "MUSTER_RANK0_PORT": "23456", "MUSTER_GRACE_SECONDS": "40", "MUSTER_TRACE_STEPS": "20:25",
        "MUSTER_TRACE_RANKS": "0,3", "CUDA_VISIBLE_DEVICES": "2,3",
    }  # fmt: skip


def test_without_a_trace_nothing_is_said_of_one_and_without_gpus_none_is_seen() -> None:
    environment = pod_environment(BASE, shell_job("job", "true"), POD, PodAllocation("/runs/job", (), 1))
    assert "MUSTER_TRACE_STEPS" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_the_template_adds_and_replaces_but_the_contract_wins() -> None:
    job = shell_job(
        "job", "true", env={"MY": "1", "PATH": "/opt", "MUSTER_RUN_DIR": "/evil", "TWO": "$(MY)$(MUSTER_JOB)"}
    )
    environment = pod_environment(BASE, job, POD, SLOT)
    wanted = {"MY": "1", "PATH": "/opt", "MUSTER_RUN_DIR": "/runs/job", "TWO": "1job"}
    assert {name: environment[name] for name in wanted} == wanted


def test_references_are_replaced_as_a_kubelet_does() -> None:
    values = {"A": "1"}
    assert [expand_references(text, values) for text in ("$(A)", "$$(A)", "$(B)", "$A", "$$$$")] == [
        "1",
        "$(A)",
        "$(B)",
        "$A",
        "$$",
    ]
    assert command_line(spec.Container(command=["run", "$(A)"], args=["--x=$(A)"]), values) == ["run", "1", "--x=1"]


def test_python_is_the_interpreter_of_whoever_submitted() -> None:
    job = annotate_submitter(shell_job("job", "true"))
    environment = interpreter_environment({"PATH": "/other/venv/bin:/bin", "VIRTUAL_ENV": "/other/venv"}, job)
    folder = Path(sys.executable).parent
    assert environment["PATH"].split(os.pathsep) == [str(folder), "/other/venv/bin", "/bin"]
    assert environment.get("VIRTUAL_ENV") == (str(folder.parent) if (folder.parent / "pyvenv.cfg").exists() else None)


@pytest.mark.parametrize(
    ("container", "pod", "complaint"),
    [
        ({}, {"volumes": [{"name": "data"}]}, "spec.volumes: 'data': there are no volumes on this host"),
        ({"volumeMounts": [{"name": "data"}]}, {}, "containers[0].volumeMounts: there are no volumes"),
        ({}, {"initContainers": [{"name": "fetch"}]}, "spec.initContainers: 'fetch': init containers do not run"),
        ({}, {"containers": [{"command": ["true"]}] * 2}, "spec.containers: must be one"),
        (
            {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {}}}]},
            {},
            "env[0].valueFrom: 'T': there are no secrets",
        ),
        ({"env": [{"name": "A=B", "value": "c"}]}, {}, "env[0].name: must be a name without '='"),
        ({"env": [{"name": "", "value": "c"}]}, {}, "env[0].name: must be a name without '='"),
        ({"env": [{"name": "A", "value": "b\0c"}]}, {}, "env[0].value: must not contain the character NUL"),
        ({"command": ["true", "a\0b"]}, {}, "containers[0].command[1]: must not contain the character NUL"),
        ({"args": ["a\0b"]}, {}, "containers[0].args[0]: must not contain the character NUL"),
        ({"envFrom": [{"secretRef": {}}]}, {}, "containers[0].envFrom: there are no secrets"),
        ({"lifecycle": {"preStop": {}}}, {}, "containers[0].lifecycle: hooks do not run"),
        ({"command": []}, {}, "containers[0].command: must not be empty"),
        ({"command": ["no-such-program"]}, {}, "command: program 'no-such-program' not found"),
        ({"command": ["/no/such/program"]}, {}, "command: program '/no/such/program' not found"),
        ({"workingDir": "/no/such/folder"}, {}, "workingDir: must be a folder on this host; got '/no/such/folder'"),
        ({"args": ["nowhere.py", "--out", "new.py"]}, {}, "args[0]: the script 'nowhere.py' does not exist in "),
    ],
)
def test_what_this_host_cannot_give_is_refused_by_name(
    container: dict[str, Any], pod: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        check_local_support(job_with(container, pod), BASE)
    assert complaint in str(refusal.value)
    assert refusal.value.field.startswith("spec.roles[0].template.spec.")


def test_priority_classes_are_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.priorityClassName: must be omitted.* got 'high'"):
        check_local_support(job_with({}, priorityClassName="high"), BASE)


def test_what_only_a_container_needs_is_ignored_with_a_notice() -> None:
    notices = check_local_support(
        job_with({"image": "torch:2.13", "readinessProbe": {"exec": {}}}, {"hostNetwork": True}), BASE
    )
    assert [notice.split(".")[-1] for notice in notices] == [
        f"{field} is ignored on this host" for field in ("hostNetwork", "image", "readinessProbe")
    ]


def test_every_submission_has_a_mark_of_its_own_and_keeps_its_other_notes() -> None:
    first = annotate_submitter(shell_job("job", "true")).metadata.annotations | {
        WORKING_DIRECTORY_ANNOTATION: "/elsewhere"
    }
    job = shell_job("job", "true")
    again = annotate_submitter(
        job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": first})})
    )
    assert again.metadata.annotations[SUBMISSION_ANNOTATION] != first[SUBMISSION_ANNOTATION]
    assert again.metadata.annotations[WORKING_DIRECTORY_ANNOTATION] == "/elsewhere"


@pytest.mark.parametrize(
    ("line", "script"),
    [
        (["python", "train.py", "--config", "new.py"], "train.py"),
        (["python", "-m", "muster_components.launch", "--nproc", "2", "--", "a/b.py"], "a/b.py"),
        (["python", "-m", "muster_components.launch", "--", "-m", "gen", "out.py"], None),
        (
            ["python", "-m", "muster_components.launch", "--", "-m", "muster_components.trainer.instrument", "a.py"],
            "a.py",
        ),
        (
            ["python", "-m", "muster_components.launch", "--", "-m", "muster_components.trainer.instrument", "-m", "a"],
            None,
        ),
        (["python", "-m", "gen", "out.py"], None),
        (["python", "-m", "gen", "--", "out.py"], None),
        (["python", "-u", "-c", "pass", "out.py"], None),
        (["python", "-u", "train.py"], "train.py"),
        (["python", "-m", "train"], None),
        (["sh", "-c", "python train.py"], None),
        (["python", "-c", "import x;print('a.py')"], None),
        (["python", "$(SCRIPT).py"], None),
        (["python", "--file=x.py"], None),
    ],
)
def test_the_script_is_the_first_argument_that_names_a_python_file(line: list[str], script: str | None) -> None:
    assert script_argument(line) == script


LAUNCH = ["python", "-m", "muster_components.launch"]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ([*LAUNCH, "--nproc", "2", "--nnodes=1", "--", "train.py", "--nprocs", "2"], None),
        ([*LAUNCH, "--", "train.py"], None),
        ([*LAUNCH, "--nprocs", "2", "--", "train.py"], "--nprocs"),
        ([*LAUNCH, "--nproc", "2", "train.py"], "train.py"),
        ([*LAUNCH, "--nproc=2", "--nodes=1", "--", "train.py"], "--nodes=1"),
        (["python", "-m", "torch.distributed.run", "--nprocs", "2", "train.py"], None),
        (["python", "train.py", "--nprocs", "2"], None),
    ],
)
def test_what_our_launcher_would_refuse_is_known_before(line: list[str], wrong: str | None) -> None:
    assert unknown_launcher_argument(line) == wrong


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--nprocs", "has no argument '--nprocs'; did you mean '--nproc'?"),
        ("train.py", "has no argument 'train.py'; valid are --nproc and --nnodes"),
    ],
)
def test_a_mistyped_argument_of_the_launcher_is_refused_with_the_nearest_one(argument: str, told: str) -> None:
    job = job_with({"command": [sys.executable, *LAUNCH[1:], argument, "2", "--", "train.py"]})
    with pytest.raises(InvalidSpec, match=re.escape(told)) as refused:
        check_local_support(job, BASE)
    place = job.spec.roles[0].template.spec.containers[0].command.index(argument)
    assert refused.value.field == f"spec.roles[0].template.spec.containers[0].command[{place}]"


def test_a_script_is_looked_for_where_the_user_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    check_local_support(annotate_submitter(job_with({"args": ["train.py"]})), BASE)
    monkeypatch.chdir("/")
    with pytest.raises(InvalidSpec, match=r"'train\.py' does not exist in /;"):
        check_local_support(annotate_submitter(job_with({"args": ["train.py"]})), BASE)


@pytest.mark.parametrize(
    ("command", "args", "field"),
    [
        ([sys.executable, "no.py"], [], "command[1]"),
        ([sys.executable], ["-u", "no.py"], "args[1]"),
        ([sys.executable, "-m", "muster_components.trainer", "--data=no"], [], "command[3]"),
        ([sys.executable, "-m", "muster_components.trainer"], ["--data", "no"], "args[1]"),
    ],
)
def test_what_is_not_there_is_named_by_the_field_that_holds_it(command: list[str], args: list[str], field: str) -> None:
    with pytest.raises(InvalidSpec, match="does not exist in ") as refused:
        check_local_support(job_with({"command": command, "args": args}), BASE)
    assert refused.value.field == f"spec.roles[0].template.spec.containers[0].{field}"


TRAINER = ["-m", "muster_components.launch", "--nproc", "2", "--", "-m", "muster_components.trainer"]


@pytest.mark.parametrize(
    ("line", "data"),
    [
        (["python", *TRAINER, "--model", "gpt:10m", "--data", "texts"], "texts"),
        (["python", *TRAINER, "--data=a", "--data=b"], "b"),
        (["python", "-m", "muster_components.trainer", "--data", "texts"], "texts"),
        (["python", *TRAINER, "--data"], None),
        (["python", *TRAINER], None),
        (["python", "train.py", "--data", "texts"], None),
        (["python", *TRAINER[:-1], "other", "--data", "texts"], None),
    ],
)
def test_what_is_read_is_known_of_our_own_trainer_alone(line: list[str], data: str | None) -> None:
    assert data_argument(line) == data


@pytest.mark.parametrize(
    ("data", "there"),
    [("texts", True), ("texts/a.txt", True), ("texts/**/*.txt", True), ("te?ts", True), ("text", False),
     ("texts/*.py", False), ("/no/such/folder", False), ("~/no-such-folder-of-mine", False)],
)  # fmt: skip
def test_text_to_train_on_is_looked_for_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, there: bool
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    monkeypatch.chdir(tmp_path)
    job = annotate_submitter(job_with({"command": ["python3", *TRAINER], "args": ["--data", data]}))
    if there:
        check_local_support(job, BASE)
    else:
        with pytest.raises(
            InvalidSpec, match=re.escape(f"--data {data!r} does not exist in {tmp_path}; give a folder")
        ):
            check_local_support(job, BASE)


def test_the_variables_that_a_job_does_not_get_are_told_again_only_when_there_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_OWN", "1")
    home, jobs = open_home(tmp_path / "home"), [shell_job("a", "true")]

    def told() -> list[str]:
        return LocalClient(home, start=False).newly_left_out(jobs)

    assert "MY_OWN" in told()
    assert told() == []
    monkeypatch.delenv("MY_OWN")
    assert told() == []
    monkeypatch.setenv("ANOTHER", "1")
    assert "ANOTHER" in told()
    assert told() == []
    home.left_out.write_text("no JSON")
    assert "ANOTHER" in told()
