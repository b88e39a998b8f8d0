"""Which addresses, names and folders a cluster with real nodes has: fixed, since a machine runs one at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "muster0"
HOST = "10.97.0.1"  # this machine, as nodes and pods see it
API = "10.96.0.1"  # the address of the Service `kubernetes`: the API server listens there itself, so no kube-proxy
DNS = "10.96.0.10"
PODS = "10.244"  # pods of node N have 10.244.N.0/24
CGROUP = "muster-kubelets"
RUN = Path("/run/muster-kubelets")  # sockets: their paths must be short
CNI_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
PAUSE = "localhost/muster-pause:1"


@dataclass(frozen=True, slots=True)
class Node:
    """One of the nodes, from 1."""

    number: int
    cluster: Path  # the cluster's folder

    @property
    def name(self) -> str:
        """What the cluster calls it."""
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        """Its own, on the bridge."""
        return f"10.97.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"{PODS}.{self.number}.0/24"

    @property
    def cgroup(self) -> str:
        """Below which the cgroups of its pods lie, in every hierarchy."""
        return f"/{CGROUP}/{self.name}"

    @property
    def folder(self) -> Path:
        """What would be its disk."""
        return self.cluster / self.name

    @property
    def run(self) -> Path:
        """What it sees as /run."""
        return RUN / self.name

    @property
    def socket(self) -> Path:
        """Where its containerd listens, as this machine sees it."""
        return self.run / "containerd" / "containerd.sock"


def cni_folder() -> Path | None:
    """Where the CNI plugins lie, if they are here."""
    folders = [*os.environ.get("CNI_PATH", "").split(":"), *CNI_FOLDERS]
    needed = ("bridge", "host-local", "loopback")
    found = (Path(folder) for folder in folders if folder and all(Path(folder, name).exists() for name in needed))
    return next(found, None)
