"""The command lines of the control plane's programs, and why each flag is there."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# KWOK's nodes have no heartbeat here: a node is unhealthy when a test says so and not when the machine is slow.
NODE_GRACE = "240h"
PROXY = "front-proxy-client"
"""The name in the certificate with which the API server passes requests to aggregated APIs."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one control plane keeps its files and listens."""

    folder: Path
    etcd_port: int
    etcd_peer_port: int
    api_port: int
    kubelet_port: int
    address: str = "127.0.0.1"  # of the API server
    real_nodes: bool = False  # kubelets that renew their Leases, not KWOK's

    @classmethod
    def on_free_ports(cls, folder: Path, service: str = "") -> Layout:
        """Free ports, from below the range that systems give to outgoing connections.

        `service` is an address of this machine at which pods of real kubelets find the API server, on port 443.
        """
        held: list[socket.socket] = []
        while len(held) < 4:
            taken = socket.socket()
            try:
                taken.bind(("127.0.0.1", random.randrange(20000, 32000)))
            except OSError:
                taken.close()
            else:
                held.append(taken)
        etcd, peer, api, kubelet = (taken.getsockname()[1] for taken in held)
        for taken in held:
            taken.close()
        if service:
            return cls(folder, etcd, peer, 443, kubelet, service, real_nodes=True)
        return cls(folder, etcd, peer, api, kubelet)

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def authority(self) -> Path:
        """The certificate by which clients know the API server; it makes it on its first start."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def key(self) -> Path:
        """The private key for service account tokens."""
        return self.folder / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        """The users and their tokens."""
        return self.folder / "tokens.csv"

    @property
    def proxy(self) -> Path:
        """The CA, certificate and key with which the API server passes requests to aggregated APIs."""
        return self.folder / "proxy"

    @property
    def log(self) -> Path:
        """What every pod has logged."""
        return self.folder / "pods.log"

    @property
    def audit(self) -> Path:
        """The API server's audit log, where one is kept."""
        return self.folder / "audit.log"

    @property
    def data(self) -> Path:
        """What etcd stores."""
        return self.folder / "etcd-data"


def etcd(layout: Layout) -> list[str]:
    """A single etcd that does not wait for the disk: what it stores need not outlive the machine."""
    client, peer = (f"http://127.0.0.1:{port}" for port in (layout.etcd_port, layout.etcd_peer_port))
    return [
        f"--data-dir={layout.data}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def apiserver(
    layout: Layout, gates: tuple[str, ...], *, apis: Sequence[str] = (), readable: bool = False, audited: bool = False
) -> list[str]:
    """The API server as clusters run it: RBAC, the default admission plugins but one, priority and fairness. `apis` are
    served although they are off by default."""
    flags = [
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        f"--bind-address={layout.address}",
        f"--advertise-address={layout.address}",
        f"--secure-port={layout.api_port}",
        f"--cert-dir={layout.authority.parent}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # loopback may not be an endpoint
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={layout.tokens}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.key}",
        f"--service-account-signing-key-file={layout.key}",
        # It taints every new node as not ready until the controller manager has seen it: 20 s for 1,000 nodes.
        "--disable-admission-plugins=TaintNodesByCondition",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        # The aggregation layer, as kubeadm sets it up.
        f"--requestheader-client-ca-file={layout.proxy / 'ca.crt'}",
        f"--requestheader-allowed-names={PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={layout.proxy / PROXY / 'tls.crt'}",
        f"--proxy-client-key-file={layout.proxy / PROXY / 'tls.key'}",
    ]
    if readable:
        flags.append("--storage-media-type=application/json")
    if audited:
        flags += [f"--audit-policy-file={_audit_policy(layout)}", f"--audit-log-path={layout.audit}"]
    if gates:
        flags.append(_gates(gates))
    if apis:
        flags.append("--runtime-config=" + ",".join(f"{api}=true" for api in apis))
    return flags


def _audit_policy(layout: Layout) -> Path:
    """Who changed what and when; nothing of reading."""
    reads = {"level": "None", "verbs": ["get", "list", "watch"]}
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [reads, {"level": "Metadata"}],
    }
    path = layout.folder / "audit-policy.json"
    path.write_text(json.dumps(policy))
    return path


def controller_manager(layout: Layout, kubeconfig: Path, gates: tuple[str, ...]) -> list[str]:
    """The controllers, without an election and without a port."""
    flags = [
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={layout.key}",
        f"--root-ca-file={layout.authority}",
        "--kube-api-qps=300",
        "--kube-api-burst=500",
        "--horizontal-pod-autoscaler-sync-period=1s",  # of 15 s
    ]
    if not layout.real_nodes:
        flags.append(f"--node-monitor-grace-period={NODE_GRACE}")
    return [*flags, _gates(gates)] if gates else flags


def scheduler(layout: Layout, kubeconfig: Path, gates: tuple[str, ...]) -> list[str]:
    """The scheduler with its own defaults, without an election and without a port."""
    config = layout.folder / "scheduler.json"
    client = {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000}
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": client,
        "leaderElection": {"leaderElect": False},
    }
    config.write_text(json.dumps(body))
    flags = [f"--config={config}", "--secure-port=0"]
    return [*flags, _gates(gates)] if gates else flags


def kwok(layout: Layout, kubeconfig: Path, stages: Path) -> list[str]:
    """KWOK with our stages. A node whose label says that its kubelet is stopped is left alone."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--config={stages}",
        "--manage-nodes-with-label-selector=kwok.muster.dev/kubelet!=stopped",
        "--node-lease-duration-seconds=0",
        "--node-ip=127.0.0.1",
        f"--node-port={layout.kubelet_port}",
        f"--server-address=127.0.0.1:{layout.kubelet_port}",  # `kubectl logs` asks there
        f"--tls-cert-file={layout.authority}",
        f"--tls-private-key-file={layout.authority.with_suffix('.key')}",
    ]


def _gates(gates: tuple[str, ...]) -> str:
    return "--feature-gates=" + ",".join(f"{gate}=true" for gate in gates)
