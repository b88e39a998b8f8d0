"""`muster run`: what a command line starts, and the job that it becomes."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import queue

from muster.api.spec import TrainingJob

GPUS = {"name": "n0", "allocatable": {"cpu": "16", "nvidia.com/gpu": "8"}}
CORES = {"name": "n0", "allocatable": {"cpu": "4"}}
LAUNCH = ["python", "-m", "muster_components.launch", "--nproc"]
INSTRUMENT = ["--", "-m", "muster_components.trainer.instrument"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: MemoryClient) -> Path:
    cluster.kept_queues = {name: queue(name) for name in ("default", "research")}
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("print('one')\n")
    (folder / "run.sh").write_text("echo one\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


def dry_run(muster: Muster, *words: str) -> dict[str, Any]:
    ended = muster("run", "--dry-run", *words)
    assert ended.code == 0, ended.err
    document: dict[str, Any] = yaml.safe_load(ended.out)
    return document


def container(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["roles"][0]["template"]["spec"]["containers"][0]
    return found


def test_a_script_starts_once_per_process_with_heartbeats_and_traces(project: Path, muster: Muster) -> None:
    document = dry_run(muster, "-n", "2", "--", "train.py", "--lr", "0.1", "--json")
    assert container(document)["command"] == [*LAUNCH, "2", *INSTRUMENT, "train.py", "--lr", "0.1", "--json"]
    assert document["metadata"]["name"].startswith("train-")


def test_python_before_a_script_is_the_script(project: Path, muster: Muster) -> None:
    assert container(dry_run(muster, "--", "python3", "train.py"))["command"][-1] == "train.py"
    assert container(dry_run(muster, "python", "-m", "pkg.train"))["command"][-2:] == ["-m", "pkg.train"]


def test_a_module_starts_as_python_m_does(project: Path, muster: Muster) -> None:
    document = dry_run(muster, "--", "-m", "pkg.train", "--lr", "1")
    assert container(document)["command"] == [*LAUNCH, "1", *INSTRUMENT, "-m", "pkg.train", "--lr", "1"]
    assert document["metadata"]["name"].startswith("train-")


def test_a_command_starts_once_per_node(project: Path, muster: Muster) -> None:
    document = dry_run(muster, "--nodes", "2", "--", "bash", "run.sh", "a b")
    assert container(document)["command"] == ["bash", "run.sh", "a b"]
    assert document["spec"]["roles"][0]["replicas"] == 2
    assert document["metadata"]["name"].startswith("run-")
    assert container(dry_run(muster, "--", "echo a && echo b"))["command"] == ["sh", "-c", "echo a && echo b"]


def test_processes_of_a_command_that_starts_once_per_node_are_refused(project: Path, muster: Muster) -> None:
    ended = muster("run", "-n", "2", "--json", "--", "bash", "run.sh")
    assert (ended.code, ended.error["field"]) == (2, "-n")


def test_each_process_gets_a_gpu_if_a_node_has_as_many(project: Path, muster: Muster, cluster: MemoryClient) -> None:
    cluster.node_rows = [GPUS]
    resources = container(dry_run(muster, "-n", "2", "--", "train.py"))["resources"]
    assert resources == {"requests": {"cpu": "3", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}
    assert container(dry_run(muster, "-n", "2", "--gpus", "0", "--", "train.py"))["resources"] == {
        "requests": {"cpu": "2"}
    }
    cluster.node_rows = [CORES]
    assert container(dry_run(muster, "-n", "2", "--", "train.py"))["resources"] == {"requests": {"cpu": "2"}}


def test_nodes_with_gpus_start_a_process_per_gpu(project: Path, muster: Muster, cluster: MemoryClient) -> None:
    cluster.node_rows = [GPUS]
    document = dry_run(muster, "--nodes", "2", "--gpus", "8", "--", "train.py")
    assert container(document)["command"][4] == "8"
    assert document["spec"]["roles"][0]["replicas"] == 2


def test_options_are_fields_of_the_job(project: Path, muster: Muster) -> None:
    options = ["--name", "llama", "--queue", "research", "--priority", "5", "--time", "2h", "--max-restarts", "3"]
    document = dry_run(muster, *options, "--env", "A=1", "--image", "me/torch:1", "--", "train.py")
    spec = document["spec"]
    assert (spec["queue"], spec["priority"], spec["maxRuntimeSeconds"]) == ("research", 5, 7200)
    assert spec["failurePolicy"]["maxRestarts"] == 3
    assert (document["metadata"]["name"], container(document)["image"]) == ("llama", "me/torch:1")
    assert container(document)["env"] == [{"name": "A", "value": "1"}]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "must name what to run"),
        (["--", "-m"], "must name what to run"),
        (["--", "absent.py"], "'absent.py' does not exist"),
        (["--", "--lr"], "'--lr' is not an option"),
        (["--wait", "--follow", "--", "train.py"], "--follow: must not be used with --wait"),
    ],
)
def test_a_wrong_command_line_is_refused(project: Path, muster: Muster, words: list[str], part: str) -> None:
    ended = muster("run", *words)
    assert (ended.code, part in ended.err) == (2, True)


def test_the_name_is_printed_alone_and_with_json_the_job(project: Path, muster: Muster, cluster: MemoryClient) -> None:
    ended = muster("run", "--name", "mine", "--", "train.py")
    assert (ended.code, ended.out) == (0, "mine\n")
    (row,) = muster("run", "--json", "--", "train.py").rows
    assert row["metadata"]["name"] in cluster.kept_jobs
    assert row["metadata"]["name"] != muster("run", "--json", "--", "train.py").rows[0]["metadata"]["name"]


def staged(project: Path, job: TrainingJob) -> Path:
    return project.parent / "home" / "submissions" / job.metadata.annotations["muster.dev/staged"]


def test_the_copy_has_the_code_of_the_folder_without_ignored_files_and_links_to_these(
    project: Path, muster: Muster, cluster: MemoryClient
) -> None:
    (project / ".musterignore").write_text("# data\ndata/\n*.bin\n")
    (project / "data").mkdir()
    (project / "data" / "a.txt").write_text("a")
    (project / "w.bin").write_text("w")
    assert muster("run", "--name", "mine", "--", "train.py", "").code == 0
    folder = staged(project, cluster.kept_jobs["mine"])
    record = json.loads((folder / "run.json").read_text())
    assert record["files"] == [".musterignore", "run.sh", "train.py"]
    assert record["command"] == ["train.py", ""]
    assert "python" in record["versions"]
    assert (folder / "code" / "data").is_symlink()
    assert (folder / "code" / "data" / "a.txt").read_text() == "a"
    (project / "train.py").write_text("print('two')\n")
    assert (folder / "code" / "train.py").read_text() == "print('one')\n"


def test_names_of_environment_variables_are_kept_but_no_values(
    project: Path, muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hidden-value")
    muster("run", "--name", "mine", "--", "train.py")
    text = (staged(project, cluster.kept_jobs["mine"]) / "run.json").read_text()
    assert ("WANDB_API_KEY" in text, "hidden-value" in text) == (True, False)


def test_in_a_repository_the_commit_and_the_changes_stay_with_the_run(
    project: Path, muster: Muster, cluster: MemoryClient
) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.email=a@example.com", "-c", "user.name=a"]
        subprocess.run(["git", *identity, *words], cwd=project, check=True, capture_output=True)

    git("init")
    (project / ".gitignore").write_text("ignored.txt\n")
    (project / "ignored.txt").write_text("x")
    git("add", "-A")
    git("commit", "-m", "one")
    (project / "train.py").write_text("print('changed')\n")
    (project / "new.py").write_text("")
    muster("run", "--name", "mine", "--", "train.py")
    job = cluster.kept_jobs["mine"]
    assert job.metadata.annotations["muster.dev/code"].endswith(" with changes")
    folder = staged(project, job)
    assert json.loads((folder / "run.json").read_text())["files"] == [".gitignore", "new.py", "run.sh", "train.py"]
    assert "+print('changed')" in (folder / "changes.diff").read_text()
    command = job.spec.roles[0].template.spec.containers[0].command
    assert command[-1] == "$(MUSTER_RUN_DIR)/submission/code/train.py"


def test_a_refused_run_leaves_no_copy(project: Path, muster: Muster) -> None:
    assert muster("run", "--name", "mine", "--", "train.py").code == 0
    assert muster("run", "--name", "mine", "--json", "--", "train.py").error["reason"] == "AlreadyExists"
    assert len(list((project.parent / "home" / "submissions").iterdir())) == 1


def test_a_folder_with_too_much_code_is_refused_unless_it_is_not_copied(
    project: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.local.code_copy.MAX_FILES", 1)
    ended = muster("run", "--", "train.py")
    assert (ended.code, ".musterignore" in ended.err) == (2, True)
    assert muster("run", "--no-copy", "--", "train.py").code == 0


def test_a_module_and_pythonpath_are_those_of_the_copy(
    project: Path, muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"src:{project.parent}")
    muster("run", "--name", "mine", "--", "-m", "pkg.train")
    env = {one.name: one.value for one in cluster.kept_jobs["mine"].spec.roles[0].template.spec.containers[0].env}
    copy = "$(MUSTER_RUN_DIR)/submission/code"
    assert env == {"PYTHONPATH": f"{copy}:{copy}/src:{project.parent}", "PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(
    ("text", "start"),
    [("print(1)", LAUNCH), ("#!/usr/bin/env python3\n", LAUNCH), ("#!/bin/bash -e\n", ["/bin/bash", "-e"])],
)
def test_a_script_from_stdin_stays_with_the_run(
    project: Path, muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch, text: str, start: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert muster("run", "--name", "mine", "--", "-", "--lr", "1").code == 0
    job = cluster.kept_jobs["mine"]
    command = job.spec.roles[0].template.spec.containers[0].command
    assert command[: len(start)] == start
    assert command[-3:] == ["$(MUSTER_RUN_DIR)/submission/stdin", "--lr", "1"]
    assert (staged(project, job) / "stdin").read_text() == text


def test_a_run_waits_for_other_jobs_and_times(project: Path, muster: Muster, cluster: MemoryClient) -> None:
    for name in ("prepare", "check"):
        assert muster("run", "--name", name, "--", "true").code == 0
    document = dry_run(
        muster, "--after", "prepare", "--after", "check:notok", "--singleton", "nightly", "--cancel-if-unsatisfiable",
        "--begin", "2030-01-02T03:04:05Z", "--deadline", "2030-01-02T06:00:00Z", "train.py",
    )  # fmt: skip
    spec = document["spec"]
    assert spec["dependsOn"] == [{"job": "prepare"}, {"job": "check", "outcome": "NotSucceeded"}]
    assert (spec["singleton"], spec["cancelIfUnsatisfiable"]) == ("nightly", True)
    assert (spec["beginTime"], spec["startDeadline"]) == ("2030-01-02T03:04:05Z", "2030-01-02T06:00:00Z")


@pytest.mark.parametrize(
    "words",
    [
        ("--after", "a:maybe"),
        ("--after", ":ok"),
        ("--begin", "soon"),
        ("--deadline", "25:00"),
        ("--begin", "99999999d"),
        ("--deadline", "2020-01-01"),
    ],
)
def test_conditions_that_cannot_be_read_name_the_option(project: Path, muster: Muster, words: tuple[str, str]) -> None:
    ended = muster("run", "--dry-run", "--json", *words, "train.py")
    assert (ended.code, ended.error["field"]) == (2, words[0])


def test_the_home_is_no_code_of_a_project_that_contains_it(
    project: Path, muster: Muster, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(project / "mine" / "muster"))
    for name in ("first", "second"):
        assert muster("run", "--name", name, "train.py").code == 0
    staged = cluster.kept_jobs["second"].metadata.annotations["muster.dev/staged"]
    code = project / "mine" / "muster" / "submissions" / staged / "code"
    assert (code / "train.py").is_file()
    assert not list(code.rglob("submissions"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--name", "Foo_Bar"), "error: --name: must consist of lower-case letters"),
        (("--queue", "NOPE"), "error: --queue: must consist of lower-case letters"),
        (("--queue", "reserch"), "error: --queue: "),
        (("--singleton", "a b"), "error: --singleton: "),
        (("--deadline", "2h", "--begin", "3h"), "error: --deadline: "),
    ],
)
def test_errors_name_the_option_that_was_given(
    project: Path, muster: Muster, options: tuple[str, ...], message: str
) -> None:
    ended = muster("run", "--dry-run", *options, "--", "train.py")
    assert ended.code != 0
    assert ended.err.startswith(message)
    assert "spec." not in ended.err
    as_json = json.loads(muster("run", "--json", "--dry-run", *options, "--", "train.py").err)
    assert as_json["error"]["field"] == options[0]


def test_an_array_is_given_as_in_slurm(project: Path, muster: Muster) -> None:
    spec = dry_run(muster, "--array", "0-99%10", "--after", "one:corr", "--", "train.py")["spec"]
    assert spec["array"] == {"indices": "0-99", "parallelism": 10}
    assert spec["dependsOn"] == [{"job": "one", "eachIndex": True}]
    assert dry_run(muster, "--array", "0-8:4,20", "--", "train.py")["spec"]["array"] == {"indices": "0,4,8,20"}
    ended = muster("run", "--array", "0-", "--", "train.py")
    assert (ended.code, "--array: must be indices" in ended.err) == (2, True)
    for text, why in (("0-8:0", "step must be at least 1"), ("1,9-5:2", "last index of 9-5:2 is below its first one")):
        ended = muster("run", "--array", text, "--", "train.py")
        assert (ended.code, why in ended.err) == (2, True), ended.err


def test_commands_for_one_pod_name_an_index_of_an_array(project: Path, muster: Muster) -> None:
    assert muster("run", "--name", "sweep", "--array", "4-9", "--", "train.py").code == 0
    for words in (("logs", "sweep"), ("exec", "sweep", "--", "ls"), ("port-forward", "sweep", "6006")):
        ended = muster(*words)
        assert (ended.code, "name one of its indices, such as sweep-4" in ended.err) == (2, True)


@pytest.mark.parametrize(("given", "message"), [("9-1", "--array: the last index"), ("0-9%0", "--array: must be at")])
def test_errors_of_an_array_name_its_option(project: Path, muster: Muster, given: str, message: str) -> None:
    ended = muster("run", "--array", given, "--", "train.py")
    assert (ended.code, message in ended.err) == (2, True)
