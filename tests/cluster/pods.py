"""Pods for the tests of the control plane itself."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.pod_status import ATTEMPT, PREFIX

Json = dict[str, Any]


def pod(name: str, *, attempt: int = 0, grace_s: int = 30, sidecar: bool = False, **annotations: str) -> Json:
    """A pod of one container; `run_seconds="2"` becomes the annotation kwok.muster.dev/run-seconds."""
    spec: Json = {
        "containers": [{"name": "main", "image": "trainer"}],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_s,
    }
    if sidecar:
        spec["initContainers"] = [
            {"name": "set-up", "image": "trainer"},
            {"name": "collector", "image": "collector", "restartPolicy": "Always"},
        ]
    steering = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    labels = {ATTEMPT: str(attempt)}
    return {"metadata": {"name": name, "labels": labels, "annotations": steering}, "spec": spec}


class Pods:
    """The pods of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name: str, **wishes: Any) -> None:
        """Create one; `wishes` are the arguments of `pod`."""
        self.plane.api.create(self.path, pod(name, **wishes))

    def get(self, name: str) -> Json:
        """One as it is now."""
        return self.plane.api.get(f"{self.path}/{name}")

    def delete(self, name: str) -> None:
        """Ask for its deletion."""
        self.plane.api.delete(f"{self.path}/{name}")

    def steer(self, name: str, **annotations: str | None) -> None:
        """Change its annotations; None takes one away."""
        steering = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
        self.plane.api.patch(f"{self.path}/{name}", {"metadata": {"annotations": steering}})

    def reach(self, name: str, phase: str) -> Json:
        """Wait for a phase; the pod then."""
        self.plane.wait_for(f"{name} is {phase}", lambda: self.get(name)["status"]["phase"] == phase)
        return self.get(name)

    def until_gone(self, name: str) -> None:
        """Wait until it is gone."""
        self.plane.wait_for(f"{name} is gone", lambda: self.plane.api.gone(f"{self.path}/{name}"))

    def version(self) -> str:
        """The resourceVersion of now, for `history`."""
        version: str = self.plane.api.get(self.path)["metadata"]["resourceVersion"]
        return version

    def history(self, name: str, since: str) -> list[Json]:
        """Every event of a pod from `since` until now, as a watcher sees them: {"type": ..., "object": ...}."""
        gone = self.plane.api.gone(f"{self.path}/{name}")
        last = "" if gone else self.get(name)["metadata"]["resourceVersion"]
        seen: list[Json] = []
        with closing(self.plane.api.watch(self.path, since, seconds=60)) as events:
            for event in events:
                if event["object"]["metadata"]["name"] == name:
                    seen.append(event)
                    if event["type"] == "DELETED" or event["object"]["metadata"]["resourceVersion"] == last:
                        break
        return seen


def ready(pod: Json) -> str | None:
    """The status of its Ready condition."""
    conditions = pod["status"].get("conditions", ())
    return next((condition["status"] for condition in conditions if condition["type"] == "Ready"), None)


def state(pod: Json, kind: str = "containerStatuses", index: int = 0) -> tuple[str, Json]:
    """What a container is in, e.g. ("terminated", {"exitCode": 1, ...})."""
    ((name, details),) = pod["status"][kind][index]["state"].items()
    return name, details
