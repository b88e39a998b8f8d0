"""What Kubernetes itself brings: kube-scheduler with single pods, with batch Jobs, and with its native gangs."""

from __future__ import annotations

import json

from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.peer import Ground, Kind

GANGS = ("GenericWorkload", "GangScheduling")


def start(ground: Ground, gates: tuple[str, ...] = ()) -> None:
    """kube-scheduler with its own defaults, without an election and without a port."""
    rate = ground.site.rate
    config = ground.folder / "peer-scheduler.json"
    config.write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(ground.kubeconfig), "qps": rate.qps, "burst": rate.burst},
        "leaderElection": {"leaderElect": False},
    }))  # fmt: skip
    program = ground.site.plane.binaries["kube-scheduler"].path
    turned_on = [f"--feature-gates={','.join(f'{gate}=true' for gate in gates)}"] if gates else []
    ground.run("kube-scheduler", [program, f"--config={config}", "--secure-port=0", *turned_on])


ALONE = Kind("kube-scheduler", job_objects.alone, start, places=True)
JOBS = Kind("jobs", job_objects.batch, start, places=True, controllers_make_pods=True)
NATIVE = Kind(
    "native",
    job_objects.native,
    lambda ground: start(ground, GANGS),
    job_objects.NATIVE_GROUPS,
    places=True,
    gates=GANGS,
)
