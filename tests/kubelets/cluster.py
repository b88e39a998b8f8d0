"""Starts a cluster with real nodes, and removes everything of it afterwards.

with Cluster.start(folder, images=[archive]) as cluster:
    cluster.plane.kubectl("get", "nodes")
    cluster.kill(cluster.nodes[0])
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.binaries import Binary, Unavailable, ensure
from tests.cluster.controlplane.catalogue import OF_NODES
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised
from tests.kubelets import machine, pause, programs
from tests.kubelets.layout import API, BRIDGE, CGROUP, DNS, HOST, RUN, Node

HERE = Path(__file__).parent
READY_S = 700


class Cluster:
    """A running cluster. It ends with `stop()`, or with this process, however that ends."""

    def __init__(self, folder: Path, nodes: int, gpus: int, images: Sequence[Path]) -> None:
        """Use `start`."""
        self.folder = folder
        self.nodes = tuple(Node(number, folder) for number in range(1, nodes + 1))
        self.plane: ControlPlane
        self._gpus = gpus
        self._images = [folder / "pause.tar", *images]
        self._binaries: dict[str, Binary] = {}
        self._running: dict[str, Supervised] = {}
        self._namespace_pids: dict[str, int] = {}  # a process in the network namespace of each node
        self._host_setup: subprocess.Popen[str] | None = None
        self._closing = contextlib.ExitStack()

    @classmethod
    def start(cls, folder: Path, *, nodes: int = 2, gpus: int = 2, images: Sequence[Path] = ()) -> Cluster:
        """Start a cluster with its files in `folder`; returns when every node is Ready and has its GPUs.

        `images`: archives that every node loads. Raises Unavailable with the reason where this machine cannot run
        kubelets, and Died where a program ends. Waits while another such cluster runs on this machine.
        """
        lacks = machine.missing()
        if lacks:
            raise Unavailable("This machine cannot run kubelets: " + "; ".join(lacks))
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        cluster = cls(folder, nodes, gpus, [image.absolute() for image in images])
        try:
            cluster._start()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _start(self) -> None:
        self._binaries = ensure(OF_NODES)
        pause.write(self._images[0])
        self._set_up_host()
        self.plane = self._closing.enter_context(
            ControlPlane.start(self.folder / "control-plane", kwok=False, service=API)
        )
        self._run_dns()
        for node in self.nodes:
            self.boot(node)
        for node in self.nodes:
            self.wait_until_ready(node)

    # Nodes

    def boot(self, node: Node) -> None:
        """Start a node, for the first time or after `kill`, with its previous disk. Returns before it is Ready."""
        plan = programs.write(node, self._binaries, self.plane.kubeconfig(), self._images)
        network = f"--net=/proc/{self._namespace_pids[node.name]}/ns/net"
        namespaces = [network, "unshare", "--mount", "--pid", "--uts", "--ipc", "--kill-child"]
        first_process = [sys.executable, "-I", "-S", str(HERE / "first_process.py"), str(plan)]
        self._running[node.name] = Supervised(
            node.name, ["nsenter", *namespaces, "--mount-proc", *first_process], self.folder
        )

    def kill(self, node: Node) -> None:
        """Kill everything that runs on a node at once: kubelet, containerd and containers."""
        self._running.pop(node.name).kill()

    def wait_until_ready(self, node: Node) -> None:
        """Return when the node is Ready and has its GPUs."""
        path = f"/api/v1/nodes/{node.name}"

        def ready() -> bool:
            self._running[node.name].check()
            try:
                conditions = self.plane.api.get(path)["status"].get("conditions", [])
            except Refused:
                return False
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        def has_gpus() -> bool:
            allocatable: dict[str, str] = self.plane.api.get(path)["status"]["allocatable"]
            return allocatable.get(GPU) == str(self._gpus)

        self.plane.wait_for(f"{node.name} is Ready", ready, READY_S)
        # The kubelet keeps resources that others wrote, and computes the allocatable amount itself.
        self.plane.api.patch(f"{path}/status", {"status": {"capacity": {GPU: str(self._gpus)}}})
        self.plane.wait_for(f"{node.name} offers {self._gpus} {GPU}", has_gpus, READY_S)

    def load(self, archive: Path) -> None:
        """Load an image into every running node."""
        self._images.append(archive.absolute())
        for node in self.nodes:
            if node.name in self._running:
                command = [str(self._binaries["ctr"].path), "--namespace=k8s.io", f"--address={node.socket}"]
                subprocess.run([*command, "images", "import", str(archive)], stdout=subprocess.DEVNULL, check=True)

    # The machine

    def _set_up_host(self) -> None:
        """Start the process that creates the bridge, network namespaces, cgroups and folders."""
        plan = self.folder / "machine.json"
        nodes = [
            {
                "veth": f"{BRIDGE}n{node.number}",
                "address": node.address,
                "pods": node.pods,
                "cgroup": node.cgroup,
                "run": str(node.run),
                "folder": str(node.folder),
            }
            for node in self.nodes
        ]
        body = {
            "lock": "/run/lock/muster-kubelets" if Path("/run/lock").is_dir() else "/run/muster-kubelets.lock",
            "bridge": BRIDGE,
            "host": HOST,
            "addresses": [f"{HOST}/24", f"{API}/32", f"{DNS}/32"],
            "cgroup": CGROUP,
            "run": str(RUN),
            "nodes": nodes,
        }
        plan.write_text(json.dumps(body))
        with (self.folder / "host_setup.log").open("ab") as log:
            self._host_setup = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HERE / "host_setup.py"), str(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            )
        out: IO[str] | None = self._host_setup.stdout
        output = out.readline().split() if out is not None else []
        if not output:
            why = (self.folder / "host_setup.log").read_text().strip()
            raise Unavailable(f"This machine cannot run kubelets: the network of nodes could not be created: {why}")
        self._namespace_pids = {node.name: int(pid) for node, pid in zip(self.nodes, output[1:], strict=True)}

    def _run_dns(self) -> None:
        """CoreDNS, at the DNS address of all pods."""
        config = self.folder / "Corefile"
        config.write_text(
            f".:53 {{\n  bind {DNS}\n  errors\n  kubernetes cluster.local 10.in-addr.arpa {{\n"
            f"    kubeconfig {self.plane.kubeconfig()}\n    ttl 1\n  }}\n}}\n"
        )
        command = [str(self._binaries["muster-coredns"].path), f"-conf={config}"]
        self._running["coredns"] = Supervised("coredns", command, self.folder)

    def stop(self) -> None:
        """Stop everything in reverse order and remove all of it from the machine. Logs are kept in the folder."""
        try:
            for program in reversed(list(self._running.values())):
                program.stop()
            self._running.clear()
            self._closing.close()
        finally:
            if self._host_setup is not None and self._host_setup.stdin is not None:
                self._host_setup.stdin.close()
                self._host_setup.wait()
                self._host_setup = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
