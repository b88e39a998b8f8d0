"""The nodes this cluster shows: this host as one node, or a virtual shape for learning and tests.

A shape such as `4x8` (4 nodes of 8 GPUs) or `8x8:rack=2,block=4 + 2x0:cpu=16` has slots, not isolation: all replicas
still run on this host, and a slot is only a number in CUDA_VISIBLE_DEVICES.

    shape   = group { "+" group }
    group   = NODES "x" GPUS [ ":" key "=" value { "," key "=" value } ]
    key     = rack | block     how many nodes share one
            | cpu | memory     of one node, as a quantity
            | anything else    a node label, for flavors of your own
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from muster.cluster import NodeView
from muster.errors import InvalidSpec
from muster.local.capacity import GPU, POD_SLOTS, Capacity
from muster.model import Resources
from muster.quantity import parse_quantity
from muster.tables.node_rows import VIRTUAL_NODE_LABEL
from muster.text.suggest import closest_match

LOCAL_LABEL, BLOCK_LABEL, RACK_LABEL = "muster.dev/local", "muster.dev/block", "muster.dev/rack"
HOSTNAME_LABEL = "kubernetes.io/hostname"
HOST_SHAPE = "host"  # the word for no shape at all
MAX_NODES = 20_000
_MAX_GPUS = 1024
_CPU_PER_GPU, _MEMORY_PER_GPU = 8000, 64 * 2**30
_GROUP = re.compile(r"^(\d{1,6})x(\d{1,6})(?::(.*))?$")
_SIMILARITY_CUTOFF = (
    0.7  # from this likeness on a key was meant for one of ours: `rak`, `cpus`; but not `gpu`, which is like `cpu`
)
_EXAMPLE = "write for example 4x8, or 8x8:rack=2,block=4"


@dataclass(frozen=True, slots=True)
class VirtualNodeGroup:
    """Pretended nodes that are alike; `rack` and `block` count nodes, 0 means all in one."""

    count: int
    gpus: int
    cpu_milli: int
    memory_bytes: int
    rack: int = 0
    block: int = 0
    labels: dict[str, str] = field(default_factory=dict)


def parse_shape(text: str) -> tuple[VirtualNodeGroup, ...]:
    """The groups of a shape. Raises `InvalidSpec` that names the part that is wrong and a right one."""
    groups = tuple(_parse_group(part.strip()) for part in text.split("+"))
    total = sum(group.count for group in groups)
    if total > MAX_NODES:
        raise InvalidSpec(f"--nodes {text!r}: {total} nodes are too many; write at most {MAX_NODES}", field="nodes")
    return groups


def _parse_group(part: str) -> VirtualNodeGroup:
    match = _GROUP.match(part)
    if not match or int(match[1]) == 0 or int(match[2]) > _MAX_GPUS:
        raise InvalidSpec(f"--nodes {part!r}: not NODESxGPUS (GPUs at most {_MAX_GPUS}); {_EXAMPLE}", field="nodes")
    count, gpus = int(match[1]), int(match[2])
    amounts = {"cpu": _CPU_PER_GPU * max(1, gpus), "memory": _MEMORY_PER_GPU * max(1, gpus), "rack": 0, "block": 0}
    labels: dict[str, str] = {}
    for pair in (match[3] or "").split(",") if match[3] is not None else ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            raise InvalidSpec(f"--nodes {part!r}: {pair!r} is not key=value; {_EXAMPLE}", field="nodes")
        if key not in amounts:
            near = closest_match(key, amounts, _SIMILARITY_CUTOFF)
            if near is not None:
                message = f"{key!r} is not known; did you mean {near!r}? A label of a name like that needs a prefix"
                raise InvalidSpec(f"--nodes {part!r}: {message}, as in example.com/{key}={value}", field="nodes")
            labels[key] = value
            continue
        try:
            amounts[key] = parse_quantity(value, key)
        except ValueError as error:
            raise InvalidSpec(f"--nodes {part!r}: {error}", field="nodes") from error
    rack, block = amounts["rack"], amounts["block"]
    if rack and block % rack:
        raise InvalidSpec(
            f"--nodes {part!r}: block={block} is no multiple of rack={rack}; both count nodes",
            field="nodes",
        )
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
    amounts = {"cpu": cpu_milli, "memory": memory_bytes, GPU: gpus, "pods": POD_SLOTS}
    return NodeView(name=name, allocatable=Resources.of(amounts), labels=labels)
