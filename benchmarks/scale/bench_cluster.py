"""A control plane with 500 virtual nodes, and a scheduler: started for every case."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scale.client import Client
from benchmarks.scale.contender import Contender, Rate, Scheduler, Site
from benchmarks.scale.muster import NODE_LABELS, WRITES
from benchmarks.scale.programs import cpu_s, metrics, peak_rss_mib
from benchmarks.scale.work import NAMESPACE
from tests.cluster.controlplane.nodes import GPU, Shape
from tests.cluster.controlplane.plane import ControlPlane

SHAPE = Shape(gpus=8, per_rack=20, racks_per_block=5, labels=NODE_LABELS)
_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok")


@dataclass(frozen=True, slots=True)
class BenchCluster:
    """A running control plane with a scheduler. Times are seconds."""

    plane: ControlPlane
    scheduler: Scheduler
    client: Client
    rate: Rate
    nodes: tuple[str, ...]
    pids: Mapping[str, int]  # of all programs but this one

    def cpu_s(self) -> dict[str, float]:
        """CPU that each program and this process have used since their start."""
        own_times = os.times()
        return {name: cpu_s(pid) for name, pid in self.pids.items()} | {"harness": own_times.user + own_times.system}

    def peak_rss_mib(self) -> float:
        """The scheduler's own programs', since their start."""
        return sum(peak_rss_mib(pid) for pid in self.scheduler.own.values())

    def served(self) -> dict[str, float]:
        """How many writes the API server counted, by verb and resource, of any client; without dry runs."""
        counted: dict[str, float] = {}
        text = str(self.plane.api.get("/metrics")["message"])  # it is no JSON
        for labels, value in metrics(text, "apiserver_request_total"):
            if labels["verb"] in WRITES and not labels.get("dry_run"):
                resource = "/".join(part for part in (labels["resource"], labels.get("subresource")) if part)
                key = f"{labels['verb']} {resource}"
                counted[key] = counted.get(key, 0.0) + value
        return counted


@contextmanager
def bench_cluster(folder: Path, nodes: int, rate: Rate, contender: Contender) -> Iterator[BenchCluster]:
    """Start everything in `folder`, which is made; ends everything with the context."""
    with ControlPlane.start(
        folder, scheduler=contender.kube_scheduler, gates=contender.gates, controllers=contender.controllers(rate)
    ) as plane:
        names = plane.add_nodes(nodes, SHAPE)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        plane.wait_for("the namespace has its service account", lambda: not plane.api.gone(account))
        client = Client(plane.server, plane.authority, plane.token_for("admin"))
        with contender.begin(Site(plane, client, rate, nodes, nodes * SHAPE.gpus)) as scheduler:
            programs = (*_PROGRAMS, "kube-scheduler") if contender.kube_scheduler else _PROGRAMS
            pids = {name: plane.pid(name) for name in programs} | {**scheduler.others, **scheduler.own}
            yield BenchCluster(plane, scheduler, client, rate, tuple(names), pids)


def all_gpus(nodes: int) -> dict[str, str]:
    """What all nodes have."""
    return {GPU: str(nodes * SHAPE.gpus)}
