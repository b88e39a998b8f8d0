"""CPU time of the API server for one write of a TrainingJob's status, as a merge patch and as a replacement.

    python benchmarks/status_writes.py [--writes 400] [--rounds 3] [--json]

A real API server and etcd. Each write is one that the operator makes for a job of one pod between its admission and its
readiness: phase, reason, one condition. `no-rules`: the same with a CRD without CEL rules.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the control plane is that of the tests

from benchmarks.scale.programs import cpu_s
from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.plane import ControlPlane

from muster.api.spec import ObjectMeta, TrainingJobStatus
from muster_operator.cache.status_patch import status_patch, status_replacement

CRDS = Path(__file__).resolve().parents[1] / "helm/crds.yaml"
GROUPS = {"rules": "trainingjobs.muster.dev", "no-rules": "trainingjobs.no-rules.muster.dev"}
_AT = 1_764_400_000.0
_THREADS = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A CRD and a way to write."""

    crd: str
    replaces: bool

    @property
    def name(self) -> str:
        return f"{self.crd} {'replacement' if self.replaces else 'patch'}"

    @property
    def group(self) -> str:
        return GROUPS[self.crd].partition(".")[2]


CASES = tuple(Case(crd, replaces) for crd in GROUPS for replaces in (False, True))


def status(phase: str) -> TrainingJobStatus:
    """The status of a job with one pod."""
    admitted = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": _AT}
    ready = admitted | {"type": "PodsReady", "status": "True" if phase == "Running" else "False", "reason": phase}
    return TrainingJobStatus.model_validate(
        {
            "phase": phase,
            "reason": phase,
            "observedGeneration": 1,
            "submittedAt": _AT,
            "admittedAt": _AT,
            "placement": [{"role": "trainer", "flavor": "gpus", "nodes": [{"node": "node-17", "indexes": "0"}]}],
            "podsWanted": 1,
            "podsReady": int(phase == "Running"),
            "conditions": [admitted, ready],
        }
    )


def without_rules(schema: Any) -> Any:
    """A CRD without CEL rules."""
    if isinstance(schema, dict):
        return {name: without_rules(value) for name, value in schema.items() if name != "x-kubernetes-validations"}
    return [without_rules(one) for one in schema] if isinstance(schema, list) else schema


def create_crds(plane: ControlPlane) -> None:
    """The CRD as it is, and one of another group without rules."""
    crd = next(one for one in yaml.safe_load_all(CRDS.read_text()) if one["metadata"]["name"] == GROUPS["rules"])
    bare = without_rules(crd)
    bare["metadata"] = crd["metadata"] | {"name": GROUPS["no-rules"]}
    bare["spec"]["group"] = GROUPS["no-rules"].partition(".")[2]
    for one in (crd, bare):
        plane.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", one)
        path = f"/apis/{one['spec']['group']}/v1alpha1/trainingjobs"
        plane.wait_for("the CRD is served", lambda path=path: not plane.api.gone(path), 60)


def create_job(api: Api, case: Case, number: int) -> str:
    """The path of a new job."""
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["python"], **gpu}]}}
    path = f"/apis/{case.group}/v1alpha1/namespaces/default/trainingjobs"
    name = f"job-{number}-{'put' if case.replaces else 'patch'}"
    body = {"apiVersion": f"{case.group}/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    api.create(path, body | {"spec": {"queue": "research", "roles": [{"name": "trainer", "template": template}]}})
    return f"{path}/{name}"


def write(api: Api, case: Case, path: str, count: int) -> None:
    """Write the status of one job `count` times."""
    seen = api.get(path)
    written = TrainingJobStatus.model_validate(seen.get("status", {}))
    for number in range(count):
        new = status(("Admitted", "Running")[number % 2])
        metadata = ObjectMeta.model_validate(seen["metadata"])
        if case.replaces:
            body = status_replacement(metadata, new) | {"apiVersion": seen["apiVersion"]}
            seen = api.request("PUT", f"{path}/status", body)
        else:
            seen = api.patch(f"{path}/status", status_patch(written, new, metadata.resource_version))
        written = new


def measure(plane: ControlPlane, writes: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the API server's CPU for one write, by case, of each round."""
    create_crds(plane)
    paths = {case: [create_job(plane.api, case, number) for number in range(_THREADS)] for case in CASES}
    found: dict[str, list[float]] = {case.name: [] for case in CASES}

    def run(case: Case, count: int) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda path: write(plane.api, case, path, count // _THREADS), paths[case]))

    for case in CASES:
        run(case, 20)
    for _ in range(rounds):
        for case in CASES:
            before = cpu_s(plane.pid("kube-apiserver"))
            run(case, writes)
            found[case.name].append(1000 * (cpu_s(plane.pid("kube-apiserver")) - before) / writes)
    return found


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=int, default=400, help="writes of each case in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="muster-bench-") as folder,
        ControlPlane.start(Path(folder) / "plane", scheduler=False, kwok=False) as plane,
    ):
        found = measure(plane, options.writes, options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        print(f"{name:22} median {median(values):6.2f}, min {min(values):6.2f} ms of CPU")


if __name__ == "__main__":
    main()
