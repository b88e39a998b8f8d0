"""Configuration files and command lines of a node's programs, with the reason of each setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.binaries import Binary
from tests.kubelets.layout import DNS, PAUSE, Node, cni_folder

Json = dict[str, Any]

_CONTAINERD = """
version = 3
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE a process cannot lower an oom_score_adj, and runc fails when it tries.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{cni}"]
  conf_dir = "{network}"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def write(node: Node, binaries: Mapping[str, Binary], kubeconfig: Path, images: list[Path]) -> Path:
    """Write all files of a node; returns the path of the plan for its first process."""
    disk = node.folder
    (disk / "network").mkdir(parents=True, exist_ok=True)
    (disk / "network" / "10-pods.conflist").write_text(json.dumps(_network(node)))
    (disk / "resolv.conf").write_text("")  # pods use the cluster's DNS only
    containerd = disk / "containerd.toml"
    root, network = disk / "containerd", disk / "network"
    containerd.write_text(_CONTAINERD.format(root=root, pause=PAUSE, cni=cni_folder(), network=network))
    kubelet = disk / "kubelet.json"
    kubelet.write_text(json.dumps(_kubelet(node), indent=2))
    plan = {
        "name": node.name,
        "folder": str(disk),
        "run": str(node.run),
        "logs": str(disk),
        "path": str(binaries["containerd-shim-runc-v2"].path.parent),
        "images": [str(image) for image in images],
        "ctr": [str(binaries["ctr"].path), "--namespace=k8s.io", "--address=/run/containerd/containerd.sock"],
        "containerd": [str(binaries["containerd"].path), f"--config={containerd}"],
        "kubelet": [
            str(binaries["kubelet"].path),
            f"--config={kubelet}",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
        ],
    }
    path = disk / "plan.json"
    path.write_text(json.dumps(plan, indent=2))
    return path


def _kubelet(node: Node) -> Json:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup,
        "failCgroupV1": False,
        # The machine is not dedicated to the node, which therefore reserves no resources and evicts no pods.
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "healthzPort": 0,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "registerNode": True,
    }


def _network(node: Node) -> Json:
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "/var/lib/kubelet/cni",
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
