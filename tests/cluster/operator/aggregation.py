"""Two operators that serve the read API to a control plane, as the chart registers it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.certificates import Authority
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import SYSTEM, install
from tests.cluster.operator.process import QUICK, Operator, free_ports

from muster.visibility.requests import RESOURCES
from muster.visibility.types import BASE_PATH, GROUP

SERVICE = "muster-operator"
HOST = f"{SERVICE}.{SYSTEM}.svc"
_REGISTERED = f"/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.{GROUP}"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass
class Served:
    """A control plane with a leader and a standby, whose read API has the ports `ports`."""

    plane: ControlPlane
    operators: tuple[Operator, Operator]
    ports: list[int]
    folder: Path

    @property
    def leader(self) -> int:
        """The index of the operator that leads."""
        (found,) = (index for index, operator in enumerate(self.operators) if operator.leads)
        return found

    def ask(self, index: int) -> None:
        """From now on the API server asks this operator."""
        self.plane.api.patch(_REGISTERED, {"spec": {"service": {"port": self.ports[index]}}})
        name = f"identity-{index}"
        self.plane.wait_for("the operator is asked", lambda: self.source().get("identity") == name)

    def source(self) -> dict[str, Any]:
        """What the answer to the administrator says about its origin; empty if there is none."""
        try:
            found: dict[str, Any] = self.plane.api.get(f"{BASE_PATH}/queues")["source"]
        except Refused:
            return {}
        return found


@contextmanager
def serving(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[Served]:
    """Register the API, and start the operators with these flags too, until they answer."""
    install(plane)
    authority = Authority(folder / "serving")
    authority.issue("serving", HOST, folder=folder / "tls")
    ports = free_ports(2)
    api = plane.api
    # The operators run beside the cluster: a name that the API server resolves on this machine.
    ports_of = [{"name": f"p{port}", "port": port} for port in ports]
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": ports_of}
    api.create(f"/api/v1/namespaces/{SYSTEM}/services", {"metadata": {"name": SERVICE}, "spec": spec})
    api.create(
        _REGISTERED.rpartition("/")[0],
        {
            "metadata": {"name": f"v1alpha1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1alpha1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "caBundle": base64.b64encode(authority.file.read_bytes()).decode(),
                "service": {"name": SERVICE, "namespace": SYSTEM, "port": ports[0]},
            },
        },
    )
    rule = {"apiGroups": [GROUP], "resources": list(RESOURCES), "verbs": ["get", "list"]}
    api.create(f"{_RBAC}/clusterroles", {"metadata": {"name": "visibility"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "visibility"}
    everyone = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}
    binding = {"metadata": {"name": "visibility"}, "roleRef": role, "subjects": [everyone]}
    api.create(f"{_RBAC}/clusterrolebindings", binding)
    operators = [
        Operator(
            plane.kubeconfig(), folder / f"log-{index}", *QUICK, "--identity", f"identity-{index}",
            "--visibility-listen", f"127.0.0.1:{port}", "--visibility-tls-dir", str(folder / "tls"), *flags,
        )
        for index, port in enumerate(ports)
    ]  # fmt: skip
    served = Served(plane, (operators[0], operators[1]), ports, folder)
    try:
        plane.wait_for("one leads", lambda: any(operator.leads for operator in operators), 120)
        plane.wait_for("the read API answers", lambda: bool(served.source()), 120)
        yield served
    finally:
        for operator in operators:
            if operator.running:
                operator.kill()
