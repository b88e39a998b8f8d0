"""The nodes of this cluster: this host as one node, or virtual nodes for learning and tests.

The host has the CPUs, memory and NVIDIA GPUs that this process may use: a container or a batch system often gives it
less than the machine has, so the affinity mask and the cgroup limits (v1 and v2) apply. GPUs are listed by nvidia-smi,
without torch or a CUDA context.

Virtual nodes have a shape such as `4x8` (4 nodes with 8 GPUs) or `8x8:rack=2,block=4 + 2x0:cpu=16`. They are slots
without isolation: all replicas run on this host, and a GPU is only a number in CUDA_VISIBLE_DEVICES.

    shape   = group { "+" group }
    group   = NODES "x" GPUS [ ":" key "=" value { "," key "=" value } ]
    key     = rack | block     nodes per rack or block
            | cpu | memory     of one node, as a quantity
            | anything else    a node label, for other flavors
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.api.quantity import parse_quantity
from muster.cluster import VIRTUAL_NODE_LABEL, NodeView
from muster.errors import ClusterError, InvalidSpec
from muster.model import Resources
from muster.text import closest_match

GPU = "nvidia.com/gpu"
LOCAL_LABEL, BLOCK_LABEL, RACK_LABEL = "muster.dev/local", "muster.dev/block", "muster.dev/rack"
HOSTNAME_LABEL = "kubernetes.io/hostname"
HOST_SHAPE = "host"  # the shape that means the host itself
MAX_NODES = 20_000
_MAX_GPUS = 1024
_POD_SLOTS = 110  # of a node, as a kubelet has by default
_CPU_PER_GPU, _MEMORY_PER_GPU = 8000, 64 * 2**30
_GROUP = re.compile(r"^(\d{1,6})x(\d{1,6})(?::(.*))?$")
_SIMILARITY_CUTOFF = 0.7  # a key this similar to a known one is a typing error: `rak`, `cpus`; `gpu` is not (`cpu`)
_EXAMPLE = "an example: 4x8, or 8x8:rack=2,block=4"
_NVIDIA_SMI_TIMEOUT_S = 20.0
_MIN_PORT = 20_000
_MAX_PORT_ATTEMPTS = 200


@dataclass(frozen=True, slots=True)
class VirtualNodeGroup:
    """Identical virtual nodes; `rack` and `block` are in nodes, 0 means one for all."""

    count: int
    gpus: int
    cpu_milli: int
    memory_bytes: int
    rack: int = 0
    block: int = 0
    labels: dict[str, str] = field(default_factory=dict)


def parse_shape(text: str) -> tuple[VirtualNodeGroup, ...]:
    """The groups of a shape. Raises `InvalidSpec` with the invalid part and an example."""
    groups = tuple(_parse_group(part.strip()) for part in text.split("+"))
    total = sum(group.count for group in groups)
    if total > MAX_NODES:
        raise InvalidSpec(f"--nodes {text!r}: must be at most {MAX_NODES} nodes; got {total}", field="nodes")
    return groups


def _parse_group(part: str) -> VirtualNodeGroup:
    match = _GROUP.match(part)
    if not match or int(match[1]) == 0 or int(match[2]) > _MAX_GPUS:
        limits = f"at most {MAX_NODES} nodes of at most {_MAX_GPUS} GPUs"
        message = f"--nodes {part!r}: must be NODESxGPUS, {limits}; {_EXAMPLE}"
        raise InvalidSpec(message, field="nodes")
    count, gpus = int(match[1]), int(match[2])
    amounts = {"cpu": _CPU_PER_GPU * max(1, gpus), "memory": _MEMORY_PER_GPU * max(1, gpus), "rack": 0, "block": 0}
    labels: dict[str, str] = {}
    for pair in (match[3] or "").split(",") if match[3] is not None else ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            raise InvalidSpec(f"--nodes {part!r}: {pair!r} must be key=value; {_EXAMPLE}", field="nodes")
        if key not in amounts:
            near = closest_match(key, amounts, _SIMILARITY_CUTOFF)
            if near is not None:
                message = f"unknown key {key!r}; did you mean {near!r}? For a label write example.com/{key}={value}"
                raise InvalidSpec(f"--nodes {part!r}: {message}", field="nodes")
            labels[key] = value
            continue
        try:
            amounts[key] = parse_quantity(value, key)
        except ValueError as error:
            raise InvalidSpec(f"--nodes {part!r}: {error}", field="nodes") from error
    rack, block = amounts["rack"], amounts["block"]
    if rack and block % rack:
        message = f"--nodes {part!r}: block={block} must be a multiple of rack={rack} (both in nodes)"
        raise InvalidSpec(message, field="nodes")
    return VirtualNodeGroup(count, gpus, amounts["cpu"], amounts["memory"], rack, block, labels)


def virtual_nodes(groups: tuple[VirtualNodeGroup, ...]) -> tuple[NodeView, ...]:
    """The nodes of a shape: node-0, node-1, ...; racks and blocks never span two groups."""
    nodes: list[NodeView] = []
    rack = block = -1
    for group in groups:
        first_rack, first_block = rack + 1, block + 1
        for position in range(group.count):
            rack = first_rack + (position // group.rack if group.rack else 0)
            block = first_block + (position // group.block if group.block else 0)
            name = f"node-{len(nodes)}"
            labels = {
                HOSTNAME_LABEL: name,
                LOCAL_LABEL: "true",
                VIRTUAL_NODE_LABEL: "true",
                BLOCK_LABEL: f"b{block}",
                RACK_LABEL: f"r{rack}",
            }
            nodes.append(_node(name, labels | group.labels, group.cpu_milli, group.memory_bytes, group.gpus))
    return tuple(nodes)


def host_node(capacity: Capacity) -> NodeView:
    """This host as a node."""
    name = capacity.hostname
    labels = {HOSTNAME_LABEL: name, LOCAL_LABEL: "true", BLOCK_LABEL: "b0", RACK_LABEL: "r0"}
    if capacity.gpu_model:
        labels["nvidia.com/gpu.product"] = capacity.gpu_model.replace(" ", "-")
    return _node(name, labels, capacity.cpu_milli, capacity.memory_bytes, len(capacity.gpus))


def _node(name: str, labels: dict[str, str], cpu_milli: int, memory_bytes: int, gpus: int) -> NodeView:
    amounts = {"cpu": cpu_milli, "memory": memory_bytes, GPU: gpus, "pods": _POD_SLOTS}
    return NodeView(name=name, allocatable=Resources.of(amounts), labels=labels)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Allocatable resources. `gpus` are names for CUDA_VISIBLE_DEVICES; `gpu_model` is empty without a GPU."""

    hostname: str
    cpu_milli: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    gpu_model: str = ""


def measure_capacity(environ: Mapping[str, str] = os.environ) -> Capacity:
    """The capacity of this host as this process may use it."""
    gpus = _gpus(environ)
    return Capacity(
        hostname=_node_name(socket.gethostname()),
        cpu_milli=cpu_milli(),
        memory_bytes=memory_bytes(),
        gpus=tuple(name for name, _ in gpus),
        gpu_model=gpus[0][1] if gpus else "",
    )


def cpu_milli(root: Path = Path("/")) -> int:
    """Milli-cores: the minimum of the affinity mask and the cgroup's CPU quota."""
    limits = [len(os.sched_getaffinity(0)) * 1000]
    for folder in _cgroup_folders(root, "cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = _read_text(folder / "cpu.cfs_quota_us"), _read_text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(max(1, int(quota) * 1000 // int(period)))
    return min(limits)


def memory_bytes(root: Path = Path("/")) -> int:
    """Bytes: the minimum of the machine's memory and the cgroup's limit."""
    machine_bytes = next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    limits = [machine_bytes]
    for folder in _cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read_text(folder / name)
            if text.isdigit() and int(text):
                limits.append(int(text))
    return min(limits)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """This process's cgroup of the controller and its ancestors; v1 and v2."""
    folders: list[Path] = []
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = Path(path.lstrip("/"))
        folders += [base / part for part in (group, *group.parents)]
    return folders


def _gpus(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """(index, model) of the NVIDIA GPUs, restricted to CUDA_VISIBLE_DEVICES if it is set."""
    if not (os.path.isdir("/proc/driver/nvidia") or os.path.exists("/dev/nvidiactl")):
        return []
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return []
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return visible_gpus(answer.stdout, environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(answer: str, visible: str | None) -> list[tuple[str, str]]:
    """(name for CUDA_VISIBLE_DEVICES, model) from nvidia-smi's lines "index, uuid, name".

    `visible` restricts them to those that it names: by index, by UUID or its prefix (`GPU-...`), or MIG slices
    (`MIG-...`), which nvidia-smi does not list here: each counts as one GPU.
    """
    rows = [[part.strip() for part in line.split(",", 2)] for line in answer.splitlines() if line.count(",") >= 2]
    if visible is None:
        return [(index, model) for index, _, model in rows]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    gpus = [
        (index, model)
        for index, uuid, model in rows
        if any(name == index or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)
    ]
    models = {model for _, _, model in rows}
    slice_model = f"{models.pop()} MIG" if len(models) == 1 else ""
    return gpus + [(name, slice_model) for name in dict.fromkeys(names) if name.startswith("MIG-")]


def _node_name(hostname: str) -> str:
    """The host name as a Kubernetes node name: lower case, other characters replaced by `-`."""
    name = "".join(char if char.isalnum() or char in "-." else "-" for char in hostname.lower()).strip("-.")
    return name or "localhost"


def _read_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def free_port(taken: Collection[int], rng: random.Random) -> int:
    """A free TCP port of 127.0.0.1 that is not in `taken`.

    It is below the kernel's ephemeral range, so that no outgoing connection takes it before the replica binds it.
    Raises `ClusterError` NoFreePort.
    """
    for _ in range(_MAX_PORT_ATTEMPTS):
        port = rng.randrange(_MIN_PORT, _first_ephemeral_port())
        if port not in taken and _can_bind(port):
            return port
    raise ClusterError(f"no free port from {_MIN_PORT} up was found for rendezvous", reason="NoFreePort")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32_768
    return first if first > _MIN_PORT + 1000 else 65_536


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
