"""What a component leaves open is filled in from the nodes there are."""

from __future__ import annotations

import pytest
from torchx.specs import AppDef, Resource, Role

from muster.torchx.appdef import NodeCapacity, needs_node_capacity, resolve_auto_resources
from muster.torchx.errors import SubmissionRefused

LAPTOP = [NodeCapacity(cpu_milli=8000, gpus=0)]
NODES = [NodeCapacity(cpu_milli=96_000, gpus=8, reserved_milli=9_600)]
HOST = [NodeCapacity(cpu_milli=16_000, gpus=0), NodeCapacity(cpu_milli=192_000, gpus=8)]


def app(nproc: int, gpu: int | None = None, cpu: int | None = None) -> AppDef:
    metadata = {"muster.dev/nproc": str(nproc)}
    if gpu is None:
        metadata["muster.dev/accelerator"] = "auto"
    if cpu is None:
        metadata["muster.dev/cores"] = "auto"
    resource = Resource(cpu=cpu or nproc, gpu=gpu or 0, memMB=-1)
    return AppDef(
        name="app", roles=[Role(name="trainer", image="", entrypoint="x", resource=resource, metadata=metadata)]
    )


@pytest.mark.parametrize(
    ("described", "nodes", "cpu", "gpu", "notices"),
    [
        (app(2), LAPTOP, 2, 0, []),
        (app(2), HOST, 48, 2, []),
        (app(8), HOST, 192, 8, []),
        (app(2, gpu=0), HOST, 2, 0, []),
        (app(2, cpu=4), HOST, 4, 2, []),
        (app(1, gpu=4), HOST, 96, 4, []),
        (app(8, gpu=0), [NodeCapacity(cpu_milli=7920, gpus=0)], 7, 0, ["8 processes share the 7 CPU cores of a node"]),
        (app(8), NODES, 86, 8, []),
        (app(1), NODES, 10, 1, []),
        (app(96, gpu=0), NODES, 96, 0, []),
        (app(2), [], 2, 0, []),
    ],
)
def test_open_numbers_follow_from_the_nodes(
    described: AppDef, nodes: list[NodeCapacity], cpu: int, gpu: int, notices: list[str]
) -> None:
    sized, message = resolve_auto_resources(described, nodes)
    resource = sized.roles[0].resource
    assert (resource.cpu, resource.gpu, message) == (cpu, gpu, notices)


@pytest.mark.parametrize(
    ("described", "nodes", "expected"),
    [
        (app(16), HOST, "-j requests 16 processes per node, but the largest node has 8 GPUs"),
        (app(999), LAPTOP, "-j requests 999 processes per node, but the largest node has 8 CPU cores"),
        (app(999, gpu=0), HOST, "-j requests 999 processes per node, but the largest node has 192 CPU cores"),
        (app(4, gpu=2), HOST, "-j requests 4 processes per node, but --gpu is 2"),
    ],
)
def test_more_processes_than_the_largest_node_has_gpus_or_cores_are_refused_with_the_numbers(
    described: AppDef, nodes: list[NodeCapacity], expected: str
) -> None:
    with pytest.raises(SubmissionRefused) as refused:
        resolve_auto_resources(described, nodes)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("described", "nodes", "cpu", "gpu", "notices"),
    [
        (app(16), HOST, 16, 0, ["16 processes per node, but no node has more than 8 GPUs: they run on CPU"]),
        (app(12), LAPTOP, 8, 0, ["12 processes share the 8 CPU cores of a node"]),
        (app(4, gpu=2), HOST, 48, 2, []),
    ],
)
def test_oversubscription_is_allowed_where_it_is_asked_for(
    described: AppDef, nodes: list[NodeCapacity], cpu: int, gpu: int, notices: list[str]
) -> None:
    sized, message = resolve_auto_resources(described, nodes, oversubscribe=True)
    resource = sized.roles[0].resource
    assert (resource.cpu, resource.gpu, message) == (cpu, gpu, notices)


def test_the_users_app_is_not_changed() -> None:
    described = app(2)
    resolve_auto_resources(described, HOST)
    assert described.roles[0].resource.gpu == 0


def test_nodes_are_asked_for_only_when_something_is_open() -> None:
    assert needs_node_capacity(app(2))
    assert needs_node_capacity(app(2, gpu=1))
    assert not needs_node_capacity(app(2, gpu=1, cpu=2))


def test_an_unknown_key_of_a_role_is_refused() -> None:
    described = app(2)
    described.roles[0].metadata["muster.dev/queue"] = "research"
    with pytest.raises(SubmissionRefused, match=r"role trainer: metadata muster\.dev/queue: must be one of "):
        resolve_auto_resources(described, LAPTOP)
