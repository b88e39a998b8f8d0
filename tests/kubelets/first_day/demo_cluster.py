"""Environment of the first day: a cluster, a store for traces, a volume for runs, and the user's commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.controlplane.api import Json
from tests.kubelets.cluster import Cluster
from tests.kubelets.first_day import environment, s3
from tests.kubelets.layout import HOST
from tests.kubelets.operator import BUCKET, STORE_SECRET

JOBS = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs"
CAPTURES = "/apis/muster.dev/v1alpha1/namespaces/default/tracecaptures"
PODS = "/api/v1/namespaces/default/pods"
LIMIT_S = 900  # for what takes seconds on an idle machine, or a minute with compilation


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """The cluster, and the locations of runs and traces."""

    cluster: Cluster
    runs: Path  # the volume `runs` on this machine
    traces: s3.Bucket
    log: Callable[[str], None]

    # Commands of a user

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl."""
        self.log(f"kubectl {' '.join(arguments)}")
        return self.cluster.plane.kubectl(*arguments, stdin=stdin)

    def torchx(self, *arguments: str) -> str:
        """Run torchx; returns its standard output. AssertionError with all output where it fails."""
        self.log(f"torchx {' '.join(arguments)}")
        return self._run([sys.executable, "-m", "torchx.cli.main", *arguments])

    def muster(self, *arguments: str) -> str:
        """Run muster on this cluster; returns its standard output. AssertionError with all output where it fails."""
        self.log(f"muster {' '.join(arguments)}")
        return self._run([str(Path(sys.executable).with_name("muster")), *arguments])

    def muster_lines(self, *arguments: str) -> Iterator[str]:
        """Run muster on this cluster; yields each line of its output when it comes. AssertionError where it fails."""
        self.log(f"muster {' '.join(arguments)}")
        command = [str(Path(sys.executable).with_name("muster")), *arguments]
        output, both = subprocess.PIPE, subprocess.STDOUT
        lines = []
        with subprocess.Popen(
            command, env=self._environment(), stdout=output, stderr=both, text=True, cwd=self.runs
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                yield line.rstrip("\n")
        assert process.returncode == 0, f"{' '.join(arguments)} ended with {process.returncode}\n{''.join(lines)}"

    def _environment(self) -> dict[str, str]:
        ours = {
            "KUBECONFIG": str(self.cluster.plane.kubeconfig()),
            "MUSTER_CLUSTER": "kubernetes",
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "HOME": str(self.runs.parent),
        }
        return os.environ | ours

    def _run(self, command: list[str]) -> str:
        environment = self._environment()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=self.runs
        )
        assert done.returncode == 0, (
            f"{' '.join(command[-8:])} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def must_succeed(self, name: str) -> None:
        """Return once the job has succeeded. AssertionError with what `muster describe` says if it ends otherwise."""
        self.wait("it is over", lambda: self.phase(name) in ("Succeeded", "Failed"))
        assert self.phase(name) == "Succeeded", f"job {name} failed:\n{self.muster('describe', name)}"

    # State of the cluster

    def job(self, name: str) -> Json:
        """The TrainingJob."""
        return self.cluster.plane.api.get(f"{JOBS}/{name}")

    def phase(self, name: str) -> str:
        """The job's phase; "" before the operator has written it."""
        value: str = self.job(name).get("status", {}).get("phase", "")
        return value

    def pods(self, name: str) -> list[Json]:
        """The job's pods."""
        return self.cluster.plane.api.items(PODS, labelSelector=f"muster.dev/job={name}")

    def captures(self) -> list[Json]:
        """All TraceCaptures."""
        return self.cluster.plane.api.items(CAPTURES)

    def run_folder(self, name: str) -> Path:
        """The job's run folder."""
        return self.runs / "default" / f"{name}-{self.job(name)['metadata']['uid']}"

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The metrics that rank 0 has recorded so far, one entry per step."""
        file = self.run_folder(name) / "metrics" / "rank-0.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = LIMIT_S) -> None:
        """Return when the condition holds. AssertionError with the state of the cluster after the timeout."""
        self.log(f"... until {what}")
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                seen = self.cluster.plane.kubectl("get", "nodes,tj,mq,pods", "-A", "-o", "wide")
                last = self.cluster.plane.kubectl("get", "events", "--sort-by=.lastTimestamp")
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n{seen}\n{last[-3000:]}")
            time.sleep(0.3)


@contextmanager
def demo_cluster(cluster: Cluster, folder: Path, cache: Path, log: Callable[[str], None]) -> Iterator[DemoCluster]:
    """Prepare a cluster with the operator: storage, secrets, policies. `cache` keeps compiled kernels."""
    runs = folder / "runs"
    for path in (runs, cache):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)  # pods run as another user
    with s3.serve(HOST, BUCKET) as traces:
        for document in [*environment.policy(cache), *_volume(runs), _secret(traces)]:
            cluster.plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))
        yield DemoCluster(cluster, runs, traces, log)


def _volume(folder: Path) -> list[Json]:
    """A volume that every node can mount, and the claim `runs` on it."""
    spec: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    storage = {"storage": "1Gi"}
    volume = {**spec, "capacity": storage, "hostPath": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain"}
    claim = {**spec, "resources": {"requests": storage}, "volumeName": "runs"}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "runs"}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "runs", "namespace": "default"},
            "spec": claim,
        },
    ]


def _secret(traces: s3.Bucket) -> Json:
    """Credentials of collectors for the store."""
    values = {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": traces.url,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": STORE_SECRET, "namespace": "default"},
        "stringData": values,
    }
