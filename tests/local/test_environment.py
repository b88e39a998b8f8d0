"""The environment variables of a replica, and the annotations of its submission."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.local.support import shell_job

from muster.api import spec
from muster.errors import InvalidSpec
from muster.local.client import LocalClient
from muster.local.environment import (
    SUBMISSION_ANNOTATION,
    WORKING_DIRECTORY_ANNOTATION,
    PodAllocation,
    PodIdentity,
    allowed_environment,
    annotate_submitter,
    command_line,
    daemon_environment,
    expand_references,
    interpreter_environment,
    omitted_env_vars,
    pod_environment,
    submitted_environment,
)
from muster.local.home import open_home

BASE = {"PATH": "/usr/bin:/bin"}

POD = PodIdentity("job-trainer-1-abcde", "trainer", 1, 4, 2)

SLOT = PodAllocation("/runs/job", ("2", "3"), 23456, 40.0)


def test_the_daemon_gets_only_listed_variables() -> None:
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


def test_a_job_gets_the_variables_that_training_programs_read() -> None:
    environ = NEEDED | DROPPED | SESSION | {"PATH": "/bin:/venv/bin"}
    found = submitted_environment(environ, "/venv/bin", ["AWS_SECRET_ACCESS_KEY"])
    assert found == NEEDED | {"PATH": "/venv/bin:/bin", "AWS_SECRET_ACCESS_KEY": "s"}
    assert omitted_env_vars(environ, ["AWS_SECRET_ACCESS_KEY"]) == ["GITHUB_TOKEN", "MASTER_ADDR", "RANK"]


def test_a_requested_variable_that_is_not_set_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="NOT_SET"):
        submitted_environment({"PATH": "/bin"}, "/venv/bin", ["NOT_SET"])


def test_a_pod_gets_the_variables_of_the_run_folder_contract() -> None:
    job = shell_job(
        "job",
        "true",
        trace={"startStep": 20, "steps": 5, "ranks": [0, 3], "every": 500, "whenSlower": 2},
        queue="research",
    )
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u1", "namespace": "team"})})
    environment = pod_environment(BASE, job, POD, SLOT)
    assert {name: value for name, value in environment.items() if name.startswith(("MUSTER_", "CUDA_"))} == {
        "MUSTER_JOB": "job", "MUSTER_NAMESPACE": "team", "MUSTER_JOB_UID": "u1",
        "MUSTER_POD": "job-trainer-1-abcde", "MUSTER_ROLE": "trainer", "MUSTER_REPLICA": "1", "MUSTER_REPLICAS": "4",
        "MUSTER_ATTEMPT": "2", "MUSTER_RUN_DIR": "/runs/job", "MUSTER_RANK0_HOST": "127.0.0.1",
        "MUSTER_RANK0_PORT": "23456", "MUSTER_GRACE_SECONDS": "40", "MUSTER_TRACE_STEPS": "20:25",
        "MUSTER_TRACE_RANKS": "0,3", "MUSTER_TRACE_EVERY": "500", "MUSTER_TRACE_WHEN_SLOWER": "2.0",
        "CUDA_VISIBLE_DEVICES": "2,3",
    }  # fmt: skip


@pytest.mark.slow
def test_an_elastic_torchrun_gives_rank_0_to_replica_0_whichever_starts_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('RANK', os.environ['RANK'])")
    job = shell_job("job", "true")
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    options = ("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=job")
    running = []
    for index in (1, 0):
        pod = PodIdentity(f"job-trainer-{index}-abcde", "trainer", index, 2, 0)
        environ = pod_environment(os.environ, job, pod, SLOT)
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(tmp_path / "train.py")]
        running.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    assert [process.communicate()[0] for process in running] == ["RANK 1\n", "RANK 0\n"]


def test_the_address_of_a_replica_is_the_templates_own_if_it_has_one() -> None:
    job = shell_job("job", "true", env={"PET_LOCAL_ADDR": "10.0.0.7"})
    assert pod_environment(BASE, job, POD, SLOT)["PET_LOCAL_ADDR"] == "10.0.0.7"
    assert pod_environment(BASE, shell_job("job", "true"), POD, SLOT)["PET_LOCAL_ADDR"] == "127.0.0.2"


def test_without_a_trace_there_are_no_trace_variables_and_without_gpus_none_are_visible() -> None:
    environment = pod_environment(BASE, shell_job("job", "true"), POD, PodAllocation("/runs/job", (), 1, 30.0))
    assert "MUSTER_TRACE_STEPS" not in environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_the_template_replaces_variables_except_those_of_the_contract() -> None:
    job = shell_job(
        "job", "true", env={"MY": "1", "PATH": "/opt", "MUSTER_RUN_DIR": "/evil", "TWO": "$(MY)$(MUSTER_JOB)"}
    )
    environment = pod_environment(BASE, job, POD, SLOT)
    wanted = {"MY": "1", "PATH": "/opt", "MUSTER_RUN_DIR": "/runs/job", "TWO": "1job"}
    assert {name: environment[name] for name in wanted} == wanted


def test_references_are_expanded_as_a_kubelet_does() -> None:
    values = {"A": "1"}
    assert [expand_references(text, values) for text in ("$(A)", "$$(A)", "$(B)", "$A", "$$$$")] == [
        "1",
        "$(A)",
        "$(B)",
        "$A",
        "$$",
    ]
    assert command_line(spec.Container(command=["run", "$(A)"], args=["--x=$(A)"]), values) == ["run", "1", "--x=1"]


def test_python_is_the_interpreter_of_the_submitter() -> None:
    job = annotate_submitter(shell_job("job", "true"))
    environment = interpreter_environment({"PATH": "/other/venv/bin:/bin", "VIRTUAL_ENV": "/other/venv"}, job)
    folder = Path(sys.executable).parent
    assert environment["PATH"].split(os.pathsep) == [str(folder), "/other/venv/bin", "/bin"]
    assert environment.get("VIRTUAL_ENV") == (str(folder.parent) if (folder.parent / "pyvenv.cfg").exists() else None)


def test_each_submission_has_a_new_id_and_keeps_its_other_annotations() -> None:
    first = annotate_submitter(shell_job("job", "true")).metadata.annotations | {
        WORKING_DIRECTORY_ANNOTATION: "/elsewhere"
    }
    job = shell_job("job", "true")
    again = annotate_submitter(
        job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": first})})
    )
    assert again.metadata.annotations[SUBMISSION_ANNOTATION] != first[SUBMISSION_ANNOTATION]
    assert again.metadata.annotations[WORKING_DIRECTORY_ANNOTATION] == "/elsewhere"


def test_omitted_variables_are_reported_again_only_if_there_is_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_OWN", "1")
    home, jobs = open_home(tmp_path / "home"), [shell_job("a", "true")]

    def omitted() -> tuple[str, ...]:
        found = LocalClient(home, start=False).newly_omitted(jobs)
        return () if found is None else found.names

    assert "MY_OWN" in omitted()
    assert "MY_OWN" in home.omitted_variables.read_text()
    assert omitted() == ()
    monkeypatch.delenv("MY_OWN")
    assert omitted() == ()
    monkeypatch.setenv("ANOTHER", "1")
    assert "ANOTHER" in omitted()
    assert omitted() == ()
    home.omitted_variables.write_text("no JSON")
    assert "ANOTHER" in omitted()
