"""The scenarios that every cluster has to pass, with the operator as its own process on a real control plane."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.nodes import Shape
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised
from tests.conformance.harness import FLAVOR, GPUS, NODES, Script, Start, queues
from tests.conformance.scenarios import SCENARIOS, Scenario, play

from muster import spec

ROOT = Path(__file__).resolve().parents[2]
GROUP = "/apis/muster.dev/v1alpha1"
LEASES = "muster-system"
SKIP = "MUSTER_SKIP_CLUSTER"
PATIENCE = 3  # times what a scenario asks for: real processes on a busy machine
STEER = "kwok.muster.dev/"
FOREVER = "1000000"

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.environ.get(SKIP) == "1", reason=f"{SKIP}=1"),
]


class KubernetesHarness:
    """One namespace of a cluster on which an operator runs; pods do what annotations say."""

    cannot: frozenset[str] = frozenset()

    def __init__(self, plane: ControlPlane, operator: Supervised, namespace: str) -> None:
        self.plane = plane
        self.operator = operator
        self.jobs = f"{GROUP}/namespaces/{namespace}/trainingjobs"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.namespace = namespace
        self.begun: str = self.api.get(self.pods)["metadata"]["resourceVersion"]

    @property
    def api(self) -> Api:
        return self.plane.api

    def submit(self, job: spec.TrainingJob, script: Script) -> str:
        body = job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for role in body["spec"]["roles"]:
            role["template"]["metadata"] = {"annotations": steering(script, role["name"])}
            role["template"]["spec"]["containers"][0]["image"] = "trainer"
        names = {"apiVersion": job.api_version, "kind": job.kind, "metadata": {"name": job.metadata.name}}
        uid: str = self.api.create(self.jobs, body | names)["metadata"]["uid"]
        return uid

    def edit(self, uid: str, **fields: Any) -> None:
        aliases = {name: field.alias or name for name, field in spec.TrainingJobSpec.model_fields.items()}
        body = {"spec": {aliases[name]: value for name, value in fields.items()}}
        self.api.patch(f"{self.jobs}/{self._name(uid)}", body)

    def delete(self, uid: str) -> None:
        # With --cascade=background, the default, the job is gone before its pods are.
        self.api.delete(f"{self.jobs}/{self._name(uid)}", propagationPolicy="Foreground")

    def job(self, uid: str) -> spec.TrainingJob | None:
        found = next((one for one in self.api.items(self.jobs) if one["metadata"]["uid"] == uid), None)
        if found is None:
            return None
        kept = {"name", "namespace", "uid", "generation"}
        found["metadata"] = {name: value for name, value in found["metadata"].items() if name in kept}
        return spec.TrainingJob.model_validate(found)

    def live_pods(self, uid: str) -> int:
        return sum(pod["status"]["phase"] in ("Pending", "Running") for pod in self._pods(uid))

    def starts(self, uid: str) -> list[Start]:
        starts: dict[str, Start] = {}
        for event in self.api.watch(self.pods, self.begun):
            pod = event["object"]
            labels = pod["metadata"]["labels"]
            if labels["muster.dev/job-uid"] == uid and pod["status"].get("phase") != "Pending":
                start = Start(
                    int(labels["muster.dev/attempt"]), f"{labels['muster.dev/role']}-{labels['muster.dev/index']}"
                )
                starts.setdefault(pod["metadata"]["uid"], start)
        return list(starts.values())

    def lose_pod(self, uid: str, index: int) -> None:
        pod = next(pod for pod in self._pods(uid) if pod["metadata"]["labels"]["muster.dev/index"] == str(index))
        self.api.delete(f"{self.pods}/{pod['metadata']['name']}", gracePeriodSeconds=0)

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        def holds_while_it_runs() -> bool:
            self.operator.check()
            return holds()

        self.plane.wait_for("the scenario goes on", holds_while_it_runs, PATIENCE * seconds)

    def leave(self) -> None:
        """Delete all jobs, and wait until their pods are gone."""
        self.api.delete(self.jobs)
        self.plane.wait_for("all pods are gone", lambda: not self.api.items(self.pods))

    def _name(self, uid: str) -> str:
        metas = (one["metadata"] for one in self.api.items(self.jobs))
        return next(str(meta["name"]) for meta in metas if meta["uid"] == uid)

    def _pods(self, uid: str) -> list[dict[str, Any]]:
        return self.api.items(self.pods, labelSelector=f"muster.dev/job-uid={uid}")


def steering(script: Script, role: str) -> dict[str, str]:
    """The same as annotations that KWOK's stages read; a list has one entry for each attempt."""
    steer = {"run-seconds": FOREVER if role in script.endless else f"{script.seconds:g}"}
    steer["exit-code"] = ",".join(str(code) for code in (*script.exits, 0))
    if script.stuck:
        last = max(script.stuck) + 1
        reasons = ("ImagePullBackOff" if attempt in script.stuck else "" for attempt in range(last + 1))
        steer["stuck"] = ",".join(reasons)
    return {STEER + name: value for name, value in steer.items()}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with CRDs, the nodes, the flavor and the queues of the scenarios."""
    try:
        started = ControlPlane.start(tmp_path_factory.mktemp("conformance") / "plane")
    except Unavailable as error:
        reason = str(error)
    else:
        with started:
            crds = str(ROOT / "helm" / "crds.yaml")
            started.kubectl("apply", "-f", crds)
            started.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
            started.add_nodes(NODES, Shape(gpus=GPUS))
            started.api.create("/api/v1/namespaces", {"metadata": {"name": LEASES}})
            flavor = spec.Flavor.model_validate({"metadata": {"name": FLAVOR}})
            items: list[spec.Flavor | spec.Queue] = [flavor, *queues()]
            for item in items:
                body = item.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"status"})
                body["metadata"] = {"name": item.metadata.name}
                started.api.create(f"{GROUP}/{item.kind.lower()}s", body)
            yield started
        return
    pytest.fail(reason, pytrace=False)


@pytest.fixture(scope="module")
def operator(plane: ControlPlane) -> Iterator[Supervised]:
    """The operator, as `python -m muster_operator` runs it outside of a cluster."""
    flags = [f"--kubeconfig={plane.kubeconfig()}", "--listen=127.0.0.1:0", "--listen-local=127.0.0.1:0"]
    running = Supervised("operator", [sys.executable, "-m", "muster_operator", *flags], plane.folder)
    yield running
    running.stop()


@pytest.fixture
def harness(plane: ControlPlane, operator: Supervised, request: pytest.FixtureRequest) -> Iterator[KubernetesHarness]:
    name = f"scenario-{time.time_ns()}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "annotations": {"test": request.node.name}}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    plane.wait_for("the namespace has its service account", lambda: not plane.api.gone(account))
    harness = KubernetesHarness(plane, operator, name)
    yield harness
    harness.leave()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_kubernetes(scenario: Scenario, harness: KubernetesHarness) -> None:
    play(scenario, harness)
