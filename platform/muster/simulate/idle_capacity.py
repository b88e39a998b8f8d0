"""Free room on the nodes, and how much of it nobody who waits could use.

A free GPU is of use when it lies on a node that some waiting job could put a pod on, and the nodes it may use together
(one domain of the level it requires, else one flavor) have room for its whole gang at its smallest size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from muster import spec
from muster.cluster import NodeView
from muster.simulate.trace_csv import TraceJob
from muster.simulate.workload import GPU, GPU_TYPE_LABEL

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GangDemand:
    """What a job asks for, as far as room goes. Memory in bytes."""

    pods: int  # at its smallest
    gpus: int  # of one pod, like the rest
    cpu_milli: int
    memory: int
    flavors: tuple[str, ...] = ()  # empty: any
    level: str = ""  # the topology level that all pods must share


class IdleCapacity:
    """What is free on each node: GPUs, milli-cores, bytes."""

    def __init__(self, nodes: Sequence[NodeView], levels: Iterable[spec.TopologyLevel]) -> None:
        self._free = np.array(
            [[node.allocatable.get(name) for name in (GPU, "cpu", "memory")] for node in nodes], dtype=np.int64
        )
        self._row_of_node = {node.name: i for i, node in enumerate(nodes)}
        kinds = [node.labels[GPU_TYPE_LABEL] for node in nodes]
        self._gpu_types = np.array(kinds)
        self._groups: dict[str, Counts] = {"": _group_indices(kinds)}
        path = kinds
        for level in levels:
            path = [f"{a}/{node.labels.get(level.node_label, '')}" for a, node in zip(path, nodes, strict=True)]
            self._groups[level.name] = _group_indices(path)

    def adjust(self, node: str, demand: GangDemand, sign: int) -> None:
        """A pod comes (1) or goes (-1)."""
        self._free[self._row_of_node[node]] -= sign * np.array(
            (demand.gpus, demand.cpu_milli, demand.memory), dtype=np.int64
        )

    def unusable_gpus(self, waiting: Mapping[GangDemand, int]) -> int:
        """Free GPUs that none of the waiting could use."""
        idle = self._free[:, 0] > 0
        for demand in sorted(waiting, key=lambda d: (d.pods * d.gpus, d.gpus, d.cpu_milli, d.memory)):
            if not idle.any():
                return 0
            idle &= ~self._usable(demand)
        return int(self._free[idle, 0].sum())

    def _usable(self, demand: GangDemand) -> npt.NDArray[np.bool_]:
        slots = self._free[:, 0] // demand.gpus
        for column, amount in ((1, demand.cpu_milli), (2, demand.memory)):
            if amount:
                slots = np.minimum(slots, self._free[:, column] // amount)
        if demand.flavors:
            slots = np.where(np.isin(self._gpu_types, demand.flavors), slots, 0)
        group = self._groups.get(demand.level, self._groups[""])
        free = np.bincount(group, weights=slots)
        usable: npt.NDArray[np.bool_] = (slots > 0) & (free[group] >= demand.pods)
        return usable


def demand_of(row: TraceJob, flavors: Mapping[str, str]) -> GangDemand:
    """The demand of a row; `flavors` is by GPU type."""
    kinds = tuple(flavors.get(kind, kind) for kind in row.gpu_types)
    return GangDemand(row.min_pods, row.gpus_per_pod, row.cpu_milli, row.memory_mib << 20, kinds, row.topology)


def _group_indices(names: Sequence[str]) -> Counts:
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
