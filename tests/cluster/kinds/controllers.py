"""The real controllers of JobSets and TrainJobs beside a control plane, with their CRDs and webhooks."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.controlplane.binaries import ensure
from tests.cluster.controlplane.building import manifests_of
from tests.cluster.controlplane.catalogue import JOB_SETS, TRAIN_JOBS
from tests.cluster.controlplane.certificates import Authority
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised
from tests.cluster.operator.process import free_ports

_HOOKS = "/apis/admissionregistration.k8s.io/v1"
_OF_JOB_SETS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


@contextmanager
def job_sets(plane: ControlPlane, folder: Path) -> Iterator[Supervised]:
    """While the controller of JobSets runs."""
    certificates = folder / "certificates"
    webhook, health = free_ports(2)
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
    }
    with _running(plane, folder, JOB_SETS, config, certificates, (webhook, health)) as running:
        yield running


@contextmanager
def train_jobs(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """While the controller of TrainJobs runs; that of JobSets has to."""
    webhook, health = free_ports(2)
    config = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "webhook": {"port": webhook, "host": "127.0.0.1"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "clientConnection": {"qps": 200, "burst": 400},
    }
    certificates = folder / "k8s-webhook-server" / "serving-certs"  # where it looks for them below TMPDIR
    with _running(plane, folder, TRAIN_JOBS, config, certificates, (webhook, health)):
        yield


@contextmanager
def _running(
    plane: ControlPlane,
    folder: Path,
    name: str,
    config: Mapping[str, Any],
    certificates: Path,
    ports: tuple[int, int],
) -> Iterator[Supervised]:
    program = ensure([name])[name].path
    manifests = sorted(manifests_of(program).iterdir())
    for file in manifests:
        if file.name != "manifests.yaml":
            plane.create_crds(file)
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder / "authority")
    authority.issue(name, "localhost", folder=certificates)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config)))
    webhook, health = ports
    flags = ["--config", str(folder / "config.yaml"), "--kubeconfig", str(plane.kubeconfig())]
    running = Supervised(name, ["/usr/bin/env", f"TMPDIR={folder}", str(program), *flags], folder)
    registered: list[str] = []
    try:
        plane.wait_for(f"{name} is ready", lambda: _answers(running, health))
        hooks = next(file for file in manifests if file.name == "manifests.yaml")
        for document in yaml.safe_load_all(hooks.read_text()):
            registered.append(_register(plane, name, document, webhook, authority))
        yield running
        running.check()
    finally:
        for path in registered:
            plane.api.delete_if_exists(path)
        running.stop()


def _register(plane: ControlPlane, name: str, document: dict[str, Any], port: int, authority: Authority) -> str:
    """Register its webhooks at this port of this machine; the path of the configuration."""
    ca = base64.b64encode(authority.file.read_bytes()).decode()
    for hook in document["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        hook["clientConfig"] = {"url": f"https://localhost:{port}{path}", "caBundle": ca}
        if path.endswith("-pod"):
            hook["objectSelector"] = _OF_JOB_SETS
    document["metadata"] = {"name": name}
    plural = f"{document['kind'].lower()}s"
    plane.api.create(f"{_HOOKS}/{plural}", document)
    return f"{_HOOKS}/{plural}/{name}"


def _answers(running: Supervised, port: int) -> bool:
    running.check()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
