"""A kind for tests: Experiment, a CRD with `suspend` and a pod template, and its controller.

It queues beside TrainingJobs by one row of the operator's flag `--queued-kinds`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.plane import ControlPlane

Json = dict[str, Any]
_GROUP, _PLURAL, _KIND = "tests.example.com", "experiments", "Experiment"
ROW = {
    "group": _GROUP,
    "version": "v1",
    "plural": _PLURAL,
    "kind": _KIND,
    "podSet": {"template": "spec.worker", "counts": ["spec.workers"]},
    "complete": "Done",
}
QUEUED_KINDS = ("--queued-kinds", json.dumps(["Job", "JobSet", "TrainJob", ROW]), "--trust-pods")
"""Flags of the operator. The CRDs of JobSets and TrainJobs may be missing, or come later."""
_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CRD = {
    "metadata": {"name": f"{_PLURAL}.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"kind": _KIND, "plural": _PLURAL, "singular": "experiment", "listKind": "ExperimentList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _OBJECT, "status": _OBJECT}}},
            }
        ],
    },
}


def install_experiments(plane: ControlPlane) -> None:
    """The CRD."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if plane.api.gone(f"{crds}/{_CRD['metadata']['name']}"):  # type: ignore[index]
        plane.api.create(crds, _CRD)
    plane.wait_for("Experiments are served", lambda: _is_served(plane.api))


def _is_served(api: Api) -> bool:
    try:
        api.items(f"/apis/{_GROUP}/v1/{_PLURAL}")
    except Refused:  # 404, then 429 while its storage is initialized
        return False
    return True


class Experiments:
    """Experiments of a namespace, and their controller: it creates the pods of those that are not suspended, deletes
    those of the others, and says when all have completed."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/apis/{_GROUP}/v1/namespaces/{namespace}/{_PLURAL}"
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name: str, queue: str, workers: int, pod: Json, **annotations: str) -> Json:
        """A suspended one."""
        template = {"metadata": {"annotations": annotations}, "spec": pod}
        spec = {"suspend": True, "workers": workers, "worker": template}
        meta = {"name": name, "labels": {"muster.dev/queue": queue}}
        kind = {"apiVersion": f"{_GROUP}/v1", "kind": _KIND}
        return self._api.create(self._path, {**kind, "metadata": meta, "spec": spec})

    def get(self, name: str) -> Json:
        """It as it is."""
        return self._api.get(f"{self._path}/{name}")

    def step(self) -> None:
        """One pass of the controller."""
        pods = self._api.items(self._pods)
        for one in self._api.items(self._path):
            own = [pod for pod in pods if _owner(pod) == one["metadata"]["uid"]]
            if one["spec"]["suspend"]:
                for pod in own:
                    self._api.delete_if_exists(f"{self._pods}/{pod['metadata']['name']}")
            elif len(own) < one["spec"]["workers"] and not _is_done(one):
                self._create_pods(one, {pod["metadata"]["name"] for pod in own})
            elif own and all(pod["status"].get("phase") == "Succeeded" for pod in own) and not _is_done(one):
                done = {"conditions": [{"type": "Done", "status": "True", "reason": "AllDone"}]}
                self._api.patch(f"{self._path}/{one['metadata']['name']}/status", {"status": done})

    @contextmanager
    def controlled(self) -> Iterator[Experiments]:
        """While the controller runs."""
        stop = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            while not stop.wait(0.05):
                try:
                    self.step()
                except Refused:
                    continue  # changed meanwhile
                except BaseException as error:
                    failures.append(error)
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
        assert not failures, failures

    def _create_pods(self, one: Json, existing: set[str]) -> None:
        meta, template = one["metadata"], one["spec"]["worker"]
        owner = {"apiVersion": f"{_GROUP}/v1", "kind": _KIND, "name": meta["name"], "uid": meta["uid"]}
        for index in range(one["spec"]["workers"]):
            name = f"{meta['name']}-{index}"
            if name not in existing:
                own = {"name": name, "ownerReferences": [{**owner, "controller": True}]}
                body = {"metadata": {**template.get("metadata", {}), **own}, "spec": template["spec"]}
                self._api.create(self._pods, body)


def _owner(pod: Json) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _is_done(one: Json) -> bool:
    return bool((one.get("status") or {}).get("conditions"))
