"""More processes than a node has cores or GPUs are refused with the numbers, unless the job allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster import spec
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused
from muster.local.annotations import OVERSUBSCRIBE_ANNOTATION, allow_oversubscription
from muster.local.client import LocalClient
from muster.local.programs import check_processes, processes_per_pod
from muster.model import Resources

LAUNCH = ["python", "-m", "muster_components.launch"]
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
def test_how_many_processes_a_pod_starts_is_read_from_the_command_line(line: list[str], processes: int | None) -> None:
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
def test_a_number_of_processes_of_thousands_of_digits_is_refused(digits: int) -> None:
    line = ["torchrun", "--nproc-per-node", "0" * 5_000 + "9" * digits, "train.py"]
    assert (processes_per_pod(line) or 0) > 10**9
    assert processes_per_pod(["torchrun", "--nproc-per-node", "0" * 5_000 + "8"]) == 8


def test_an_annotation_that_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="'yes'"):
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
