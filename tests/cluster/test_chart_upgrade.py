"""What an upgrade of the chart keeps and adds, and what stays after it is removed; the values of an example."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.chart import CHART, GROUP, OPERATOR, ROOT, SYSTEM, in_team, install, start
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator
from tests.manifests.objects import queue

EXAMPLE = ROOT / "examples" / "05-helm-values"


def earlier(folder: Path) -> Path:
    """The chart as an older version would have been: fewer fields and rules, another column, one replica."""
    old = folder / "muster"
    shutil.copytree(CHART, old)
    chart = yaml.safe_load((old / "Chart.yaml").read_text())
    (old / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "0.0.9", "appVersion": "0.0.9"}))
    crd = old / "templates" / "crds" / "trainingjobs.yaml"
    head, body = crd.read_text().split("spec:\n", 1)
    spec, tail = body.rsplit("{{- end }}", 1)
    loaded = yaml.safe_load("spec:\n" + spec)
    (version,) = loaded["spec"]["versions"]
    version["additionalPrinterColumns"] = version["additionalPrinterColumns"][:1]
    schema = version["schema"]["openAPIV3Schema"]
    del schema["x-kubernetes-validations"]
    del schema["properties"]["spec"]["properties"]["stallTimeoutSeconds"]
    crd.write_text(f"{head}{yaml.safe_dump(loaded, sort_keys=False)}{{{{- end }}}}{tail}")
    return old


def takes(api: Api, path: str, **fields: Any) -> bool:
    """Whether these fields of a job's spec are kept. Unknown fields are dropped silently."""
    stored = api.patch(path, {"spec": fields})["spec"]
    return {key: stored.get(key) for key in fields} == fields


@pytest.mark.timeout(1200)
def test_an_upgrade_keeps_what_users_wrote_and_adds_what_is_new(tmp_path: Path) -> None:
    with start(tmp_path / "plane") as plane:
        api = plane.api
        install(plane, earlier(tmp_path), "--set=replicas=1")
        api.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        path = in_team(api, queue="default", stallTimeoutSeconds=60)
        status = {"phase": "Running", "attempt": 2, "podsWanted": 4}
        api.patch(f"{path}/status", {"status": status})
        api.create(f"{GROUP}/queues", queue("ours", parent="default", weight=3))
        api.patch(f"{GROUP}/queues/default", {"spec": {"maxPriority": 7}})
        before = api.get(path)
        assert "stallTimeoutSeconds" not in before["spec"]

        install(plane)
        after = api.get(path)
        assert (after["spec"], after["status"]) == (before["spec"], status)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert api.get(f"{GROUP}/queues/ours")["spec"]["weight"] == 3
        assert api.get(f"{GROUP}/queues/default")["spec"]["maxPriority"] == 7
        plane.wait_for("the API server uses the new CRD", lambda: takes(api, path, stallTimeoutSeconds=60))
        assert plane.kubectl("get", "tj", "-n", "team-a").split()[:3] == ["NAME", "PHASE", "QUEUE"]
        with pytest.raises(Refused, match="names of pods begin with it"):
            in_team(api, name="a.b")
        status = api.get(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}")["status"]
        assert status["readyReplicas"] == 2

        plane.helm("uninstall", "muster", "--namespace", SYSTEM, "--wait")
        assert api.gone(f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}")
        assert api.gone(f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OPERATOR}")
        assert api.get(path)["metadata"]["uid"] == before["metadata"]["uid"]
        left = {item["metadata"]["name"] for item in api.items(f"{GROUP}/queues")}
        assert left == {"default", "ours"}

        install(plane)
        assert api.get(f"{GROUP}/queues/default")["spec"]["maxPriority"] == 7


@pytest.mark.timeout(1200)
def test_jobs_run_on_through_an_upgrade_and_keep_the_capacity_that_was_nominated(tmp_path: Path) -> None:
    with start(tmp_path / "plane") as plane:
        no_objects = ("--set-json=flavors=[]", "--set-json=queues=[]")
        install(plane, earlier(tmp_path), "--set=replicas=1", *no_objects)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        pool = Pool(plane, "team-a", None)
        pool.set_up(nodes=2, gpus=4)
        with acting(plane, tmp_path / "before.log") as operator:
            pool.submit("runs", pods=2, queue="blue")
            pool.submit("low", pods=6, does={"stop_seconds": 3600}, pod={"terminationGracePeriodSeconds": 3600})
            for name in ("runs", "low"):
                pool.wait_for_phase(name, "Running")
            pool.submit("high", pods=6, priority=5)
            pool.wait("capacity is nominated", lambda: "nomination" in pool.status("high"))
            pool.wait("the victim is evicted", lambda: "eviction" in pool.status("low"))
            operator.kill()
        nomination = pool.status("high")["nomination"]
        pods = {pod["metadata"]["uid"] for pod in pool.pods("runs")}

        install(plane, CHART, *no_objects)
        with acting(plane, tmp_path / "after.log"):
            pool.submit("other", pods=1, priority=5)
            pool.wait("the other job waits", lambda: bool(pool.waits_for("other")))
            assert pool.status("high")["nomination"] == nomination
            for pod in pool.pods("low"):
                plane.api.delete(f"/api/v1/namespaces/team-a/pods/{pod['metadata']['name']}", gracePeriodSeconds=0)
            pool.wait_for_phase("high", "Running")
            assert "nomination" not in pool.status("high")
            assert pool.pods("other") == []
        assert (pool.phase("runs"), pool.attempt("runs")) == ("Running", 0)
        assert {pod["metadata"]["uid"] for pod in pool.pods("runs")} == pods


@contextmanager
def acting(plane: ControlPlane, log: Path) -> Iterator[Operator]:
    """An operator that acts: the pods of the chart's Deployment are simulated."""
    operator = Operator(plane.kubeconfig(), log, "--no-lease")
    try:
        yield operator
    finally:
        operator.kill()


def test_the_values_of_the_example_make_its_queues_and_its_job_is_accepted(tmp_path: Path) -> None:
    with start(tmp_path / "plane") as plane:
        labels = {"node-role.kubernetes.io/control-plane": ""}
        for node in plane.api.items("/api/v1/nodes"):
            plane.api.patch(f"/api/v1/nodes/{node['metadata']['name']}", {"metadata": {"labels": labels}})
        install(plane, CHART, "--values", str(EXAMPLE / "values.yaml"))
        assert {item["metadata"]["name"] for item in plane.api.items(f"{GROUP}/queues")} == {
            "company",
            "research",
            "product",
        }
        plane.kubectl("apply", "-f", str(EXAMPLE / "job.yaml"))
        made = json.loads(plane.kubectl("get", "tj", "llama-8b", "-o", "json"))
        assert made["spec"]["queue"] == "research"
