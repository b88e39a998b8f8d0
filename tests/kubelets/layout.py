"""Addresses, names and folders of a cluster with real nodes: constant, since a machine runs one at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

BRIDGE = "muster0"
HOST = "10.97.0.1"  # this machine, as seen by nodes and pods
# Address of the Service `kubernetes`: the API server listens there itself, so that no kube-proxy is needed.
API = "10.96.0.1"
DNS = "10.96.0.10"
PODS = "10.244"  # pods of node N have 10.244.N.0/24
CGROUP = "muster-kubelets"
RUN = Path("/run/muster-kubelets")  # sockets, whose paths must be short
CNI_FOLDERS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")
PAUSE = "localhost/muster-pause:1"


@dataclass(frozen=True, slots=True)
class Node:
    """One of the nodes, from 1."""

    number: int
    cluster: Path  # the cluster's folder

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        """Address on the bridge."""
        return f"10.97.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"{PODS}.{self.number}.0/24"

    @property
    def cgroup(self) -> str:
        """Parent of its pods' cgroups, in every hierarchy."""
        return f"/{CGROUP}/{self.name}"

    @property
    def folder(self) -> Path:
        """The node's disk."""
        return self.cluster / self.name

    @property
    def run(self) -> Path:
        """The node's /run."""
        return RUN / self.name

    @property
    def socket(self) -> Path:
        """Socket of its containerd, on this machine."""
        return self.run / "containerd" / "containerd.sock"


def cni_folder() -> Path | None:
    """Folder of the CNI plugins, if installed."""
    folders = [*os.environ.get("CNI_PATH", "").split(":"), *CNI_FOLDERS]
    needed = ("bridge", "host-local", "loopback")
    found = (Path(folder) for folder in folders if folder and all(Path(folder, name).exists() for name in needed))
    return next(found, None)
