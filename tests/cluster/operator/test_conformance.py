"""The scenarios that every cluster has to pass, on Kubernetes."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.pools import GROUP, KWOK, Pool
from tests.conformance.harness import GPUS, NODES, Script, Start
from tests.conformance.scenarios import SCENARIOS, Scenario, play

from muster.api import spec

PATIENCE = 10  # times what a scenario asks for: a whole control plane on a busy machine
SLOWNESS = 2.0  # times what a script says, so that a phase is not over before anyone has looked


class Starts(threading.Thread):
    """Watches the pods of a namespace: which ones were ever seen to run, in order."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(daemon=True)
        self.seen: dict[str, tuple[str, Start]] = {}  # by the pod's uid: job and start
        self.version = 0  # the resourceVersion up to which it has seen all pods
        tls = ssl.create_default_context(cafile=str(plane.authority))
        self._connection = http.client.HTTPSConnection(urlsplit(plane.server).netloc, context=tls)
        headers = {"Authorization": f"Bearer {plane.token_for('admin')}"}
        self._connection.request("GET", f"/api/v1/namespaces/{namespace}/pods?watch=1", headers=headers)
        self._answer = self._connection.getresponse()

    def run(self) -> None:
        """Read until the connection is closed."""
        try:
            for line in self._answer:
                pod = json.loads(line)["object"]
                self._note(pod)
                self.version = int(pod["metadata"]["resourceVersion"])
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return

    def close(self) -> None:
        """End: the thread reads an end and closes what it has."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(10)

    def _note(self, pod: dict[str, Any]) -> None:
        meta, status = pod["metadata"], pod["status"]
        states = [one["state"] for one in status.get("containerStatuses", ())]
        if any("running" in state or "terminated" in state for state in states):
            labels = meta["labels"]
            name = f"{labels['muster.dev/role']}-{labels['muster.dev/index']}"
            self.seen.setdefault(
                meta["uid"], (meta["name"].rsplit("-", 3)[0], Start(int(labels["muster.dev/attempt"]), name))
            )


class KubernetesHarness:
    """Jobs in a namespace; what a script says becomes annotations that KWOK reads."""

    cannot: frozenset[str] = frozenset()

    def __init__(self, pool: Pool, starts: Starts) -> None:
        self._pool = pool
        self._starts = starts
        self._names: dict[str, str] = {}  # by uid

    def submit(self, job: spec.TrainingJob, script: Script) -> str:
        body = job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
        body["spec"]["queue"] = self._pool.queue(body["spec"]["queue"])
        body |= {"apiVersion": spec.API_VERSION, "kind": "TrainingJob"}
        body["metadata"] = {"name": job.metadata.name, "namespace": self._pool.namespace}
        for role in body["spec"]["roles"]:
            role["template"]["metadata"] = {"annotations": does(script, role["name"])}
            role["template"]["spec"]["containers"][0]["image"] = "none"
        self._pool.wait_until_seen()
        stored = self._pool.api.create(f"{GROUP}/namespaces/{self._pool.namespace}/trainingjobs", body)
        uid = str(stored["metadata"]["uid"])
        self._names[uid] = job.metadata.name
        return uid

    def edit(self, uid: str, **fields: Any) -> None:
        self._pool.edit(self._names[uid], **fields)

    def delete(self, uid: str) -> None:
        self._pool.delete(self._names[uid], propagationPolicy="Foreground")

    def job(self, uid: str) -> spec.TrainingJob | None:
        found = self._pool.get(self._names[uid])
        return None if found is None else spec.TrainingJob.model_validate(found)

    def live_pods(self, uid: str) -> int:
        pods = self._pool.pods(self._names[uid])
        return sum(pod["status"]["phase"] not in ("Succeeded", "Failed") for pod in pods)

    def starts(self, uid: str) -> list[Start]:
        newest = max((int(pod["metadata"]["resourceVersion"]) for pod in self._pool.pods()), default=0)
        self._pool.wait("the watch of starts has come so far", lambda: self._starts.version >= newest)
        return [start for job, start in list(self._starts.seen.values()) if job == self._names[uid]]

    def lose_pod(self, uid: str, index: int) -> None:
        pods = self._pool.pods(self._names[uid])
        pod = next(pod for pod in pods if pod["metadata"]["labels"]["muster.dev/index"] == str(index))
        path = f"/api/v1/namespaces/{self._pool.namespace}/pods/{pod['metadata']['name']}"
        self._pool.api.delete(path, gracePeriodSeconds=0)

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        self._pool.wait("a scenario goes on", holds, PATIENCE * seconds)


def does(script: Script, role: str) -> dict[str, str]:
    """What a pod of the role does, attempt by attempt; the last entry counts for all later ones."""
    stuck = [
        "ImagePullBackOff" if attempt in script.stuck else "" for attempt in range(max(script.stuck, default=-1) + 2)
    ]
    annotations = {"stuck": ",".join(stuck)}
    if role not in script.endless:
        lasts = [script.seconds if script.first is None else script.first, script.seconds]
        annotations["run-seconds"] = ",".join(str(seconds * SLOWNESS) for seconds in lasts)
        annotations["exit-code"] = ",".join(str(code) for code in (*script.exits, 0))
    return {KWOK + name: value for name, value in annotations.items() if value}


@pytest.fixture
def harness(pool: Pool) -> Iterator[KubernetesHarness]:
    pool.set_up(nodes=NODES, gpus=GPUS)
    starts = Starts(pool.plane, pool.namespace)
    starts.start()
    yield KubernetesHarness(pool, starts)
    starts.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_kubernetes(scenario: Scenario, harness: KubernetesHarness) -> None:
    play(scenario, harness)
