"""Checks of command lines: script, data, launcher arguments, and the number of processes."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import container_job, has

from muster.api import spec
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused
from muster.local.client import LocalClient
from muster.local.command_lines import (
    data_argument,
    misspelled_module,
    processes_per_pod,
    script_argument,
    unknown_launcher_argument,
    wrong_launcher_value,
)
from muster.local.environment import (
    OVERSUBSCRIBE_ANNOTATION,
    allow_oversubscription,
    annotate_submitter,
)
from muster.local.job_checks import check_local_support, check_processes
from muster.model import Resources

BASE = {"PATH": "/usr/bin:/bin"}


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
        (["sh", "-c", "python train.py"], "train.py"),
        (["python", "-c", "import x;print('a.py')"], None),
        (["python", "$(SCRIPT).py"], None),
        (["python", "--file=x.py"], None),
    ],
)
def test_the_script_is_the_first_argument_that_names_a_python_file(line: list[str], script: str | None) -> None:
    assert script_argument(line) == script


LAUNCH = ["python", "-m", "muster_components.launch"]
FOUND = ("muster_component.launch", "muster_components.launch")


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
def test_unknown_arguments_of_the_launcher_are_found(line: list[str], wrong: str | None) -> None:
    assert unknown_launcher_argument(line) == wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ([*LAUNCH, "--nproc", "2", "--", "train.py", "--nproc", "two"], None),
        ([*LAUNCH, "--nproc", "$(NPROC)", "--", "train.py"], None),
        ([*LAUNCH, "--nproc", "-2", "--", "train.py"], ("--nproc", "-2")),
        ([*LAUNCH, "--nproc=two", "--", "train.py"], ("--nproc", "two")),
        ([*LAUNCH, "--nproc", "2", "--nnodes", "0", "--", "train.py"], ("--nnodes", "0")),
        ([*LAUNCH, "--nproc", "--", "train.py"], ("--nproc", "")),
        (["python", "train.py", "--nproc", "two"], None),
    ],
)
def test_values_that_the_launcher_refuses_are_found(line: list[str], wrong: tuple[str, str] | None) -> None:
    assert wrong_launcher_value(line) == wrong


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (["python", "-m", "muster_component.launch"], ("muster_component.launch", "muster_components.launch")),
        (
            [*LAUNCH, "--", "-m", "muster.components.trainer"],
            ("muster.components.trainer", "muster_components.trainer"),
        ),
        ([*LAUNCH, "--", "-m", "muster_components.trainer.instrument", "train.py"], None),
        ([*LAUNCH, "--", "-m", "muster_components.trainer.__main__"], None),
        (["python", "-m", "my_components.launch"], None),
        (["python", "train.py", "--module", "muster_component.launch"], None),
        (["python", "train.py", "-m", "muster_component.launch"], None),
        (["python", "-m", "my.module", "-m", "muster_component.launch"], None),
        ([*LAUNCH, "--", "train.py", "-m", "muster_component.launch"], None),
        (["python", "-W", "ignore:::base.py", "-X", "base.py", "-m", "muster_component.launch"], FOUND),
        (["python", "-u", "train.py", "-m", "muster_component.launch"], None),
        (["env", "CONFIG=base.py", "python", "-m", "muster_component.launch"], FOUND),
        (["sh.py", "-m", "muster_component.launch"], None),
        (["sh", "-c", "python -m muster_component.launch -- train.py"], FOUND),
        (
            ["python", "-m", "torch.distributed.run", "-m", "muster_component.trainer"],
            ("muster_component.trainer", "muster_components.trainer"),
        ),
    ],
)
def test_a_misspelled_module_of_muster_is_found(line: list[str], found: tuple[str, str] | None) -> None:
    assert misspelled_module(line) == found


def test_a_job_that_starts_a_misspelled_module_is_refused() -> None:
    """Python would end with 1, so that the job would be restarted."""
    job = container_job({"command": [sys.executable, "-m", "muster_components.lauch", "--", "train.py"]})
    message = "command[2]: there is no module 'muster_components.lauch'; did you mean 'muster_components.launch'?"
    with pytest.raises(InvalidSpec, match=re.escape(message)):
        check_local_support(job, BASE)


@pytest.mark.parametrize("folder", ["", "src"])
def test_a_users_own_module_with_a_similar_name_is_no_misspelled_one(tmp_path: Path, folder: str) -> None:
    package = tmp_path / folder / "cluster_components"
    package.mkdir(parents=True)
    (package / "trainer.py").touch()
    container = {"command": [sys.executable, "-m", "cluster_components.trainer"], "workingDir": str(tmp_path)}
    check_local_support(container_job(container | {"env": [{"name": "PYTHONPATH", "value": folder}]}), BASE)
    (package / "trainer.py").unlink()
    with pytest.raises(InvalidSpec, match=re.escape("there is no module 'cluster_components.trainer'")):
        check_local_support(container_job(container), BASE)


def test_a_job_with_a_value_that_the_launcher_refuses_is_refused() -> None:
    job = container_job({"command": [sys.executable, *LAUNCH[1:], "--nproc", "two", "--", "train.py"]})
    message = "]: --nproc of muster_components.launch must be an integer of at least 1; got 'two'"
    with pytest.raises(InvalidSpec, match=re.escape(message)):
        check_local_support(job, BASE)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--nprocs", "has no argument '--nprocs'; did you mean '--nproc'?"),
        ("train.py", "has no argument 'train.py'; valid are --nproc and --nnodes"),
    ],
)
def test_a_mistyped_argument_of_the_launcher_is_refused_with_a_suggestion(argument: str, message: str) -> None:
    job = container_job({"command": [sys.executable, *LAUNCH[1:], argument, "2", "--", "train.py"]})
    with pytest.raises(InvalidSpec, match=re.escape(message)) as refused:
        check_local_support(job, BASE)
    place = job.spec.roles[0].template.spec.containers[0].command.index(argument)
    assert refused.value.field == f"spec.roles[0].template.spec.containers[0].command[{place}]"


def test_a_script_is_searched_in_the_submitters_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    check_local_support(annotate_submitter(container_job({"args": ["train.py"]})), BASE)
    monkeypatch.chdir("/")
    with pytest.raises(InvalidSpec, check=has("'train.py'", " /;")):
        check_local_support(annotate_submitter(container_job({"args": ["train.py"]})), BASE)


@pytest.mark.parametrize(
    ("command", "args", "field"),
    [
        ([sys.executable, "no.py"], [], "command[1]"),
        ([sys.executable], ["-u", "no.py"], "args[1]"),
        ([sys.executable, "-m", "muster_components.trainer", "--data=no"], [], "command[3]"),
        ([sys.executable, "-m", "muster_components.trainer"], ["--data", "no"], "args[1]"),
    ],
)
def test_a_missing_file_is_reported_with_the_field_that_names_it(
    command: list[str], args: list[str], field: str
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        check_local_support(container_job({"command": command, "args": args}), BASE)
    assert refused.value.field == f"spec.roles[0].template.spec.containers[0].{field}"


def test_a_data_set_of_a_module_needs_no_file() -> None:
    command = [sys.executable, "-m", "muster_components.trainer", "--data", "my.module:dataset"]
    check_local_support(container_job({"command": command}), BASE)


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
def test_the_data_argument_is_known_for_musters_trainer_only(line: list[str], data: str | None) -> None:
    assert data_argument(line) == data


@pytest.mark.parametrize(
    ("data", "exists"),
    [("texts", True), ("texts/a.txt", True), ("texts/**/*.txt", True), ("te?ts", True), ("text", False),
     ("texts/*.py", False), ("/no/such/folder", False), ("~/no-such-folder-of-mine", False)],
)  # fmt: skip
def test_data_is_searched_in_the_submitters_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, exists: bool
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    monkeypatch.chdir(tmp_path)
    job = annotate_submitter(container_job({"command": ["python3", *TRAINER], "args": ["--data", data]}))
    if exists:
        check_local_support(job, BASE)
    else:
        with pytest.raises(
            InvalidSpec, match=re.escape(f"--data {data!r} does not exist in {tmp_path}; give a folder")
        ):
            check_local_support(job, BASE)


RANK = ["--", "-m", "this"]


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ([*LAUNCH, "--nproc", "16", *RANK], 16),
        ([*LAUNCH, "--nproc=16", *RANK], 16),
        ([*LAUNCH, *RANK, "--nproc", "16"], 1),
        (["torchrun", "--nproc_per_node", "16", "train.py"], 16),
        (["/opt/bin/torchrun", "--nproc-per-node=16", "train.py", "--nproc_per_node", "2"], 16),
        (["torchrun", "--nproc-per-node=gpu", "train.py"], None),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node", "16", "train.py"], 16),
        (["bash", "-c", "torchrun --rdzv_backend c10d --nproc_per_node 16 --tee 3 train.py"], 16),
        (["bash", "-c", "echo 'torchrun"], None),
        (["python", "train.py", "--nproc", "16"], None),
        (["python", "-m"], None),
        (["sh", "-c", ""], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_number_of_processes_per_pod_is_read_from_the_command_line(line: list[str], processes: int | None) -> None:
    assert processes_per_pod(line) == processes


def job(processes: int, gpus: int = 0, oversubscribe: str = "false") -> spec.TrainingJob:
    container: dict[str, Any] = {"name": "main", "command": [*LAUNCH, "--nproc", str(processes), *RANK]}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    role = {"name": "trainer", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": "many", "annotations": {OVERSUBSCRIBE_ANNOTATION: oversubscribe}}
    return spec.TrainingJob.model_validate({"metadata": metadata, "spec": {"roles": [role]}})


def node(name: str, cpu_milli: int, gpus: int = 0) -> NodeView:
    return NodeView(name, Resources.of({"cpu": cpu_milli, "nvidia.com/gpu": gpus, "pods": 110}))


NODES = [node("small", 2000), node("large", 63_500, gpus=8)]


@pytest.mark.parametrize(
    ("processes", "gpus", "numbers"),
    [(65, 0, ["65 processes", "large", "64 CPU cores"]), (16, 8, ["16 processes", "8 GPUs"])],
)
def test_more_processes_than_cores_or_gpus_are_refused_with_the_numbers(
    processes: int, gpus: int, numbers: list[str]
) -> None:
    with pytest.raises(Refused) as refused:
        check_processes(job(processes, gpus), NODES)
    assert (refused.value.reason, refused.value.field.startswith("spec.roles[0]")) == ("Oversubscribed", True)
    assert [number for number in numbers if number not in str(refused.value)] == []
    check_processes(allow_oversubscription(job(processes, gpus)), NODES)


@pytest.mark.parametrize(("processes", "gpus"), [(64, 0), (8, 8), (4, 8), (1, 0)])
def test_as_many_processes_as_cores_or_gpus_are_accepted(processes: int, gpus: int) -> None:
    check_processes(job(processes, gpus), NODES)


@pytest.mark.parametrize("digits", [20, 5_000])
def test_a_number_of_processes_with_thousands_of_digits_is_large(digits: int) -> None:
    line = ["torchrun", "--nproc-per-node", "0" * 5_000 + "9" * digits, "train.py"]
    assert (processes_per_pod(line) or 0) > 10**9
    assert processes_per_pod(["torchrun", "--nproc-per-node", "0" * 5_000 + "8"]) == 8


def test_an_annotation_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(InvalidSpec, check=has("'yes'", field=f"metadata.annotations[{OVERSUBSCRIBE_ANNOTATION}]")):
        check_processes(job(1, oversubscribe="yes"), NODES)


@pytest.mark.slow
def test_the_daemon_refuses_a_job_of_more_processes_than_its_nodes_have_cores(home: Path) -> None:
    client = LocalClient.up(home, nodes="4x8:cpu=2", idle_s=60)
    with pytest.raises(Refused) as refused:
        client.submit(job(999))
    assert refused.value.reason == "Oversubscribed"
    with pytest.raises(Refused) as refused:
        client.submit(job(16, gpus=16))
    assert (refused.value.reason, "node-0, has 8 nvidia.com/gpu" in str(refused.value)) == ("LargerThanCluster", True)
    assert client.jobs() == []
    client.submit(allow_oversubscription(job(3)))


@pytest.mark.parametrize(
    ("line", "script"),
    [
        (["bash", "-c", "torchrun --nnodes 1 --tee 3 --role '' missing.py --lr 1"], "missing.py"),
        (["bash", "-c", "torchrun --rdzv_endpoint $${HOST:=localhost}:29500 missing.py"], "missing.py"),
        (["sh", "-c", "python missing.py"], "missing.py"),
        (["sh", "-c", "python -u missing.py > log"], None),
        (["sh", "-c", "cd elsewhere && python missing.py"], None),
        (["sh", "-c", "touch missing.py"], None),
        (["sh", "-c", "python $SCRIPT.py"], None),
        (["torchrun", "-m", "muster_components.trainer.instrument", "--", "missing.py"], "missing.py"),
        (["torchrun", "-m", "package.train", "missing.py"], None),
    ],
)
def test_the_script_of_a_single_shell_command_is_known(line: list[str], script: str | None) -> None:
    assert script_argument(line) == script


INSTRUMENTED = [
    "python",
    "-m",
    "muster_components.launch",
    "--",
    "-m",
    "muster_components.trainer.instrument",
    "train.py",
]


@pytest.mark.parametrize(
    ("command", "text", "refused"),
    [
        (["python", "train.py"], "print(1)", True),
        (["bash", "-c", "python train.py --lr 1"], "print(1)", True),
        (["python", "train.py"], "import os; os.environ['MUSTER_TRACE_STEPS']", False),
        (["python", "-m", "package.train"], "print(1)", False),
        (INSTRUMENTED, "print(1)", False),
    ],
)
def test_a_trace_of_a_script_that_records_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], text: str, refused: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)
    role = {"name": "trainer", "template": {"spec": {"containers": [{"command": command}]}}}
    for trace in (None, {"startStep": 5, "steps": 2}):
        document = {"metadata": {"name": "a"}, "spec": {"roles": [role], "trace": trace}}
        job = annotate_submitter(spec.TrainingJob.model_validate(document))
        if refused and trace is not None:
            with pytest.raises(InvalidSpec, match=r"no trace would be recorded.*trainer\.instrument SCRIPT") as error:
                check_local_support(job, BASE)
            assert error.value.field == "spec.trace"
        else:
            check_local_support(job, BASE)
