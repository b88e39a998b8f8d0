"""Volcano: vc-scheduler alone. Its controller is not run, so its queues are opened by hand."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.peer import Ground, Kind, add_crds, add_namespaces
from benchmarks.scale.programs import free_port

NEEDS = ("vc-scheduler", "volcano-scheduler.conf", "crds")
_QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"


def kind(folder: Path) -> Kind:
    """From a folder with vc-scheduler (of ./cmd/scheduler), and volcano-scheduler.conf and crds/ of its chart."""

    def start(ground: Ground) -> None:
        plane, rate = ground.site.plane, ground.site.rate
        add_crds(plane, folder / "crds")
        add_namespaces(plane, "volcano-system")
        ground.run("vc-scheduler", [
            folder / "vc-scheduler",
            f"--kubeconfig={ground.kubeconfig}",
            "--leader-elect=false",
            f"--scheduler-conf={folder / 'volcano-scheduler.conf'}",
            f"--kube-api-qps={rate.qps}",
            f"--kube-api-burst={rate.burst}",
            f"--listen-address=127.0.0.1:{free_port()}",
            "--cache-dumper=false",
            "--priority-class=true",
            "-v=1",
        ])  # fmt: skip
        for queue in ("root", "default"):
            path = f"{_QUEUES}/{queue}"
            plane.wait_for(f"Volcano has made its queue {queue}", lambda path=path: not plane.api.gone(path))  # type: ignore[misc]
            plane.api.patch(f"{path}/status", {"status": {"state": "Open"}})

    return Kind("volcano", job_objects.volcano, start, job_objects.VOLCANO_GROUPS)
