"""KAI: its scheduler and its binder, without quotas. Operator, pod grouper and queue controller are not run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scale.peers import job_objects
from benchmarks.scale.peers.peer import Ground, Kind, add_crds, add_namespaces, add_objects
from benchmarks.scale.programs import free_port
from benchmarks.scale.work import Json

NEEDS = ("scheduler", "binder", "crds")


def kind(folder: Path) -> Kind:
    """From a folder with scheduler and binder (of ./cmd/scheduler and ./cmd/binder), and crds/ of its chart."""

    def start(ground: Ground) -> None:
        add_crds(ground.site.plane, folder / "crds")
        add_namespaces(ground.site.plane, "kai-scheduler", "kai-resource-reservation", "kai-scale-adjust")
        add_objects(ground.site.plane, _queue("top"), _queue(job_objects.QUEUE, "top"))
        rate = ground.site.rate
        common = (f"--qps={rate.qps}", f"--burst={rate.burst}")
        through = ("env", f"KUBECONFIG={ground.kubeconfig}")  # the scheduler knows no flag for it
        ground.run("kai-scheduler", [
            *through, folder / "scheduler", *common, "--v=1",
            f"--listen-address=127.0.0.1:{free_port()}", f"--plugin-server-port={free_port()}",
        ])  # fmt: skip
        ground.run("kai-binder", [
            *through, folder / "binder", *common, "--zap-log-level=error",
            f"--metrics-bind-address=127.0.0.1:{free_port()}", f"--health-probe-bind-address=127.0.0.1:{free_port()}",
        ])  # fmt: skip

    return Kind("kai", job_objects.kai, start, job_objects.KAI_GROUPS)


def _queue(name: str, parent: str = "") -> Json:
    unlimited = {key: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for key in ("cpu", "gpu", "memory")}
    spec: Json = {"resources": unlimited} | ({"parentQueue": parent} if parent else {})
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
