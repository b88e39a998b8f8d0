"""Logs of all attempts of a job on a real control plane, after its pods are deleted: collectors have stored them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.captures import LATER
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.sidecars import COLLECTORS, any_address, collecting, listens

from muster.client import LogOptions
from muster.cluster_client.client import KubernetesClusterClient
from muster.kube.config import KubeContext
from muster_components.launch.rank_process import LogCopy

PODS = "/api/v1/namespaces/old/pods"


def test_logs_of_all_attempts_are_read_after_the_pods_are_deleted(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path / "plane", crds=CRDS) as plane:
        install(plane)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "old"}})
        store = ("--collector-store", f"file://{tmp_path}/store")
        operator = Operator(plane.kubeconfig(), tmp_path / "log", "--no-lease", *COLLECTORS, *store)
        pool = Pool(plane, "old", lambda: operator)
        try:
            pool.set_up(nodes=1, gpus=8, cpu="8")
            pool.submit("llama", pods=1, trace=LATER, failurePolicy={"maxRestarts": 1}, does={"ip": any_address()})
            for attempt, ends in ((0, "1"), (1, "0")):
                pod = running_pod(pool, attempt)
                write_log_and_stop(pool, pod, tmp_path / str(attempt), attempt)
                pool.api.patch(
                    f"{PODS}/{pod['metadata']['name']}",
                    {"metadata": {"annotations": {"kwok.muster.dev/exit-code": ends}}},
                )
            pool.wait_for_phase("llama", "Succeeded")
            for pod in pool.pods("llama"):
                pool.api.delete(f"{PODS}/{pod['metadata']['name']}")
            pool.wait("the pods are gone", lambda: not pool.api.items(PODS))
            client = KubernetesClusterClient.connect(KubeContext(str(plane.kubeconfig())))
            for chosen, read in ((0, 0), (1, 1), (None, 1)):
                lines = client.log_lines("llama", "old", "worker", 0, LogOptions(attempt=chosen))
                assert list(lines) == [f"line of attempt {read}"]
        finally:
            operator.kill()


def running_pod(pool: Pool, attempt: int) -> Json:
    """The pod of this attempt, once it runs."""
    found: list[Json] = []

    def runs() -> bool:
        found[:] = [
            pod
            for pod in pool.pods("llama")
            if pod["metadata"]["labels"]["muster.dev/attempt"] == str(attempt)
            and pod["status"].get("phase") == "Running"
        ]
        return bool(found)

    pool.wait(f"attempt {attempt} runs", runs)
    return found[0]


def write_log_and_stop(pool: Pool, pod: Json, run_dir: Path, attempt: int) -> None:
    """What the launcher writes, and the end of the collector, as when the pod is stopped."""
    run_dir.mkdir()
    with collecting(pool, pod, run_dir) as collector:
        pool.wait("the collector runs", lambda: listens(pod))
        LogCopy(run_dir / "logs" / f"worker-0.attempt-{attempt}.log").write(f"line of attempt {attempt}\n".encode())
        collector.terminate()
        assert collector.wait(120) == 0, (run_dir / "collector.log").read_text()
