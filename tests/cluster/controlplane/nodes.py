"""Nodes that exist only as objects: a grid of racks and blocks, born Ready, with GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

GPU = "nvidia.com/gpu"
BLOCK, RACK, HOST = "example.com/block", "example.com/rack", "kubernetes.io/hostname"
KUBELET = "kwok.muster.dev/kubelet"  # label; "stopped": nothing happens to the node's pods any more

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What nodes that are alike have. `per_rack` and `racks_per_block` give them places; 0: one rack, one block."""

    gpus: int = 8
    cpu: str = "96"
    memory: str = "1Ti"
    pods: int = 110
    per_rack: int = 0
    racks_per_block: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Json, ...] = ()

    def place(self, index: int) -> dict[str, str]:
        """The labels that say where node number `index` stands."""
        rack = index // self.per_rack if self.per_rack else 0
        block = rack // self.racks_per_block if self.racks_per_block else 0
        return {BLOCK: f"block-{block}", RACK: f"rack-{rack}"}


def manifest(name: str, shape: Shape, place: Mapping[str, str], kubelet_port: int) -> Json:
    """One node with its status, as a kubelet that listens on the port would register it."""
    capacity = {"cpu": shape.cpu, "memory": shape.memory, "pods": str(shape.pods), "ephemeral-storage": "1Ti"}
    if shape.gpus:
        capacity[GPU] = str(shape.gpus)
    labels = {HOST: name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", **place, **shape.labels}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": list(shape.taints)},
        "status": {
            "phase": "Running",
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": conditions("True"),
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "nodeInfo": _INFO,
        },
    }


def conditions(ready: str, since: datetime | None = None) -> list[Json]:
    """A node's conditions with Ready True, False or Unknown, since now or another time."""
    at = (since or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = {"True": "KubeletReady", "False": "KubeletNotReady", "Unknown": "NodeStatusUnknown"}[ready]
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    return [
        {"type": "Ready", "status": ready, "reason": reason, "lastHeartbeatTime": at, "lastTransitionTime": at},
        *({"type": kind, "status": "False", "lastHeartbeatTime": at, "lastTransitionTime": at} for kind in pressures),
    ]


_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "containerRuntimeVersion": "kwok://0",
    "kubeletVersion": "v1.36.3",
} | dict.fromkeys(("bootID", "kernelVersion", "kubeProxyVersion", "machineID", "osImage", "systemUUID"), "")
