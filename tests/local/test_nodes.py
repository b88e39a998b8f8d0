"""The nodes of this host: CPUs, memory, GPUs and ports; and virtual nodes."""

from __future__ import annotations

import os
import random
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from tests.local.support import has

from muster.cli.cluster import node_label_lines
from muster.errors import ClusterError, InvalidSpec
from muster.local.nodes import (
    Capacity,
    cpu_milli,
    free_port,
    host_node,
    measure_capacity,
    memory_bytes,
    parse_shape,
    virtual_nodes,
    visible_gpus,
)
from muster.local.pod_supervisor import free_devices
from muster.local.store import PodRecord

_SMI = "0, GPU-aaaa-1, NVIDIA H200\n1, GPU-bbbb-2, NVIDIA H200\n2, GPU-cccc-3, NVIDIA H200\n"


def make_root(path: Path, files: dict[str, str]) -> Path:
    for name, text in ({"proc/meminfo": "MemTotal:       8388608 kB\n"} | files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def test_the_capacity_of_this_host_is_what_this_process_may_use() -> None:
    found = measure_capacity()
    assert 0 < found.cpu_milli <= len(os.sched_getaffinity(0)) * 1000
    assert found.memory_bytes > 2**27


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
         "sys/fs/cgroup/a/memory.max": "1073741824\n"},
        {"proc/self/cgroup": "4:memory:/x\n0::/\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824\n"},
    ],
    ids=["cgroup v2, limited further up", "cgroup v1"],
)  # fmt: skip
def test_a_cgroup_limits_the_memory(tmp_path: Path, files: dict[str, str]) -> None:
    assert memory_bytes(make_root(tmp_path, files)) == 2**30


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"},
        {"proc/self/cgroup": "2:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000\n",
         "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"},
    ],
    ids=["cgroup v2", "cgroup v1"],
)  # fmt: skip
def test_a_cgroup_limits_the_cpus(tmp_path: Path, files: dict[str, str]) -> None:
    assert cpu_milli(make_root(tmp_path, files)) == 500


def test_without_a_limit_the_machines_memory_counts(tmp_path: Path) -> None:
    root = make_root(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"})
    assert memory_bytes(root) == 8 * 2**30


@pytest.mark.parametrize(
    ("visible", "indexes"),
    [(None, ["0", "1", "2"]), ("1", ["1"]), ("GPU-cccc", ["2"]), ("2,0", ["0", "2"]), ("", []), ("7", []),
     ("GPU-cccc-3,GPU-aaaa-1", ["0", "2"]), ("GPU-dddd", []), ("none", []), ("-1", []), (" 1 , ,", ["1"]),
     ("MIG-4f2a,MIG-9c1e,MIG-4f2a", ["MIG-4f2a", "MIG-9c1e"]), ("0,MIG-GPU-bbbb-2/1/0", ["0", "MIG-GPU-bbbb-2/1/0"])],
)  # fmt: skip
def test_gpus_are_restricted_to_cuda_visible_devices(visible: str | None, indexes: list[str]) -> None:
    assert [index for index, _ in visible_gpus(_SMI, visible)] == indexes


def test_mig_slices_are_gpus_with_their_own_model() -> None:
    gpus = visible_gpus(_SMI, "MIG-4f2a,MIG-9c1e")
    assert {model for _, model in gpus} == {"NVIDIA H200 MIG"}
    node = host_node(Capacity("n", 1000, 2**30, tuple(name for name, _ in gpus), gpus[0][1]))
    assert node.allocatable.get("nvidia.com/gpu") == 2
    assert node.labels["nvidia.com/gpu.product"] == "NVIDIA-H200-MIG"


def test_a_shape_has_nodes_racks_and_blocks() -> None:
    nodes = virtual_nodes(parse_shape("4x8:rack=2,block=4 + 1x0:cpu=16,memory=8Gi,disk=fast"))
    places = [(node.labels["muster.dev/block"], node.labels["muster.dev/rack"]) for node in nodes]
    assert places == [("b0", "r0"), ("b0", "r0"), ("b0", "r1"), ("b0", "r1"), ("b1", "r2")]
    assert [node.allocatable.get("nvidia.com/gpu") for node in nodes] == [8, 8, 8, 8, 0]
    assert (nodes[4].allocatable.get("cpu"), nodes[4].allocatable.get("memory")) == (16_000, 8 * 2**30)
    assert nodes[4].labels["disk"] == "fast"
    assert [node.name for node in nodes] == [f"node-{number}" for number in range(5)]
    assert all(node.labels["muster.dev/virtual"] == "true" for node in nodes)


def test_labels_of_a_shape_may_have_any_name_that_is_not_similar_to_a_key() -> None:
    (group,) = parse_shape("1x8:gpu.model=h200,gpu=h200,disk=fast,example.com/racks=2")
    assert group.labels == {"gpu.model": "h200", "gpu": "h200", "disk": "fast", "example.com/racks": "2"}


def test_the_labels_of_virtual_nodes_are_reported() -> None:
    assert node_label_lines("2x8:rack=2,gpu.model=h200,disk=fast + 4x0:cpu=16") == [
        "2x8: node labels gpu.model=h200, disk=fast"
    ]
    assert node_label_lines("host") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("four", "'four': must be NODESxGPUS"),
        ("0x8", "'0x8': must be NODESxGPUS"),
        ("9999999x8", "at most 20000 nodes of at most 1024 GPUs"),
        ("4x9999", "at most 1024 GPUs"),
        ("4x8:rack", "'rack' must be key=value"),
        ("4x8:rack=two", "must be a quantity"),
        ("8x8:rack=3,block=4", "block=4 must be a multiple of rack=3"),
        ("99999x1", "must be at most 20000 nodes; got 99999"),
        ("4x8:", "'' must be key=value"),
        ("4x8:rak=2", "unknown key 'rak'; did you mean 'rack'?"),
        ("4x8:rack=2,blocks=4", "unknown key 'blocks'; did you mean 'block'? For a label write example.com/blocks=4"),
        ("4x8+", "'': must be NODESxGPUS"),
    ],
)
def test_an_invalid_shape_is_refused_with_the_invalid_part(text: str, message: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        parse_shape(text)
    assert message in str(refusal.value)


def test_the_host_is_one_node_with_its_gpus_and_their_model() -> None:
    node = host_node(Capacity("box", 2000, 2**30, ("0", "1"), "NVIDIA H200"))
    assert dict(node.allocatable) == {"cpu": 2000, "memory": 2**30, "nvidia.com/gpu": 2, "pods": 110}
    assert node.labels["kubernetes.io/hostname"] == "box"
    assert node.labels["nvidia.com/gpu.product"] == "NVIDIA-H200"


POD = PodRecord("p", "u", "trainer", 0, 1, 0, "n1", "local", 20000, 2, devices=("1", "2"))


@pytest.mark.parametrize(
    ("pods", "count", "expected"),
    [
        ([], 2, ("0", "1")),
        ([POD], 2, ("0", "3")),
        ([POD], 3, None),
        ([replace(POD, phase="Failed")], 3, ("0", "1", "2")),
        ([replace(POD, deleting_at=1.0)], 3, None),
        ([replace(POD, devices=None)], 4, ("0", "1", "2", "3")),
        ([POD], 0, ()),
    ],
)
def test_gpus_are_free_if_no_unfinished_pod_has_them(
    pods: list[PodRecord], count: int, expected: tuple[str, ...] | None
) -> None:
    assert free_devices(("0", "1", "2", "3"), pods, count) == expected


class Fixed(random.Random):
    """Returns these ports in order, the last one repeatedly."""

    def __init__(self, *ports: int) -> None:
        super().__init__()
        self.ports = list(ports)

    def randrange(self, *_: object) -> int:
        return self.ports.pop(0) if len(self.ports) > 1 else self.ports[0]


def listener(address: str) -> socket.socket:
    listening = socket.socket()
    listening.bind((address, 0))
    listening.listen()
    return listening


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_not_chosen(address: str) -> None:
    free = free_port((), random.Random())
    with listener(address) as used:
        in_use = used.getsockname()[1]
        assert free_port({}, Fixed(in_use, free)) == free
        assert free_port({in_use}, Fixed(in_use, free)) == free
        with pytest.raises(ClusterError, check=has(reason="NoFreePort")):
            free_port({}, Fixed(in_use))
