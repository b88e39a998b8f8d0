"""Kueue: its manager, for batch/v1 Jobs alone and without webhooks; one queue owns all nodes. Needs root, see below.

The folder of the certificate of its metrics is fixed, /etc/kueue/metrics/certs. So it gets a mount namespace of its
own, in which /etc has a layer with that folder on top.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.scale.contender import Site
from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.peer import Ground, Kind, add_crds, add_namespaces, add_objects
from benchmarks.scale.programs import free_port
from benchmarks.scale.work import NAMESPACE, Json
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.kinds import controllers

NEEDS = ("kueue", "crds")
WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
_VERSION = "kueue.x-k8s.io/v1beta2"
_CONCURRENCY = {
    "Job.batch": 5, "Pod": 5, "Workload.kueue.x-k8s.io": 10, "LocalQueue.kueue.x-k8s.io": 5,
    "Cohort.kueue.x-k8s.io": 1, "ClusterQueue.kueue.x-k8s.io": 5, "ResourceFlavor.kueue.x-k8s.io": 1,
}  # fmt: skip


def kind(folder: Path) -> Kind:
    """From a folder with kueue (of ./cmd/kueue), and crds/ of config/components."""
    return _kind("kueue", folder, job_objects.kueue, "batch/job")


def kind_of_job_sets(folder: Path) -> Kind:
    """The same for JobSets, whose controller is started beside it."""
    return _kind("kueue-job-sets", folder, job_objects.kueue_job_set, "jobset.x-k8s.io/jobset")


def _kind(name: str, folder: Path, form: job_objects.Form, framework: str) -> Kind:

    def start(ground: Ground) -> None:
        plane = ground.site.plane
        add_crds(plane, folder / "crds")
        add_namespaces(plane, "kueue-system")
        certificates = ground.folder / "kueue-certificates"
        certificates.mkdir()
        shutil.copy(plane.authority, certificates / "tls.crt")
        shutil.copy(plane.authority.with_suffix(".key"), certificates / "tls.key")
        config = ground.folder / "kueue.json"
        config.write_text(json.dumps(_configuration(ground, certificates, framework)))
        manager: list[str | Path] = [
            folder / "kueue", f"--config={config}", f"--kubeconfig={ground.kubeconfig}",
            "--feature-gates=VisibilityOnDemand=false", "--zap-log-level=error",
        ]  # fmt: skip
        ground.run("kueue", ["unshare", "-m", "sh", "-c", _with_layer(ground.folder, certificates, manager)])
        add_objects(plane, *_queues(ground.site))

    found = Kind(name, form, start, WORKLOADS, controllers_make_pods=True)
    return replace(found, beside=controllers.job_sets) if framework != "batch/job" else found


def _with_layer(folder: Path, certificates: Path, command: Sequence[str | Path]) -> str:
    """A shell's line that runs the command where the certificates are in /etc/kueue/metrics/certs."""
    upper, work = folder / "etc-upper", folder / "etc-work"
    shutil.copytree(certificates, upper / "kueue" / "metrics" / "certs")
    work.mkdir()
    options = shlex.quote(f"lowerdir=/etc,upperdir={upper},workdir={work}")
    return f"mount -t overlay overlay -o {options} /etc && exec {shlex.join(map(str, command))}"


def _configuration(ground: Ground, certificates: Path, framework: str) -> Json:
    rate = ground.site.rate
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "webhook": {"port": free_port(), "host": "127.0.0.1", "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "controller": {"groupKindConcurrency": _CONCURRENCY},
        "clientConnection": {"qps": rate.qps, "burst": rate.burst},
        "integrations": {"frameworks": [framework]},
    }


def _queues(site: Site) -> list[Json]:
    everything = {"cpu": str(96 * site.nodes), "memory": f"{site.nodes}Ti", GPU: str(site.gpus)}
    quota = [{"name": name, "nominalQuota": amount} for name, amount in everything.items()]
    flavor = {"name": "default", "resources": quota}
    group = {"coveredResources": list(everything), "flavors": [flavor]}
    owner = {"namespaceSelector": {}, "queueingStrategy": "BestEffortFIFO", "resourceGroups": [group]}

    def thing(kind: str, spec: Json, **meta: str) -> Json:
        return {"apiVersion": _VERSION, "kind": kind, "metadata": meta, "spec": spec}

    return [
        thing("ResourceFlavor", {}, name="default"),
        thing("ClusterQueue", owner, name="all"),
        thing("LocalQueue", {"clusterQueue": "all"}, name=job_objects.QUEUE, namespace=NAMESPACE),
    ]
