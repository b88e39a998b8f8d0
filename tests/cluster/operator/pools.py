"""Objects of one test in a shared cluster: nodes, a flavor, queues and a namespace, all named after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.nodes import GPU, Shape
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.process import Operator

Json = dict[str, Any]
GROUP = "/apis/muster.dev/v1alpha1"
KWOK = "kwok.muster.dev/"
WAIT_S = 300.0


class Pool:
    """What a test does to its part of the cluster, and sees of it. Queue `all` is the root of `red` and `blue`."""

    def __init__(self, plane: ControlPlane, namespace: str, operator: Callable[[], Operator] | None) -> None:
        """`operator` tells which one acts; None where it comes and goes as the test likes."""
        self.plane = plane
        self.api: Api = plane.api
        self.namespace = namespace
        self._operator = operator
        self._queues: list[str] = []
        self._nodes: list[str] = []

    # ---- what there is

    def set_up(self, nodes: int = 2, gpus: int = 4, **shape: Any) -> None:
        """Nodes, the flavor, and queues that own half of everything each."""
        self.add_nodes(nodes, gpus, **shape)
        levels = [{"name": level, "nodeLabel": f"example.com/{level}"} for level in ("block", "rack")]
        levels.append({"name": "host", "nodeLabel": "kubernetes.io/hostname"})
        wanted = {"nodeLabels": {"pool": self.namespace}, "topology": levels}
        self.api.create(f"{GROUP}/flavors", _object("Flavor", self.namespace, wanted))
        self.add_queue("all", None, nodes * gpus, namespaceSelector={})
        for name in ("red", "blue"):
            self.add_queue(name, "all", nodes * gpus // 2)

    def add_nodes(self, count: int, gpus: int = 4, **shape: Any) -> list[str]:
        """More nodes; their names."""
        labels = {"pool": self.namespace, **shape.pop("labels", {})}
        wanted = Shape(gpus=gpus, labels=labels, **shape)
        names = self.plane.add_nodes(count, wanted, prefix=f"{self.namespace}-n", first=len(self._nodes))
        self._nodes += names
        return names

    def node(self, index: int) -> str:
        """The name of a node."""
        return self._nodes[index]

    def add_queue(self, name: str, parent: str | None, gpus: int, **spec: Any) -> None:
        """A queue with a guarantee."""
        wanted = {**spec, "resources": [{"flavor": self.namespace, "guaranteed": {GPU: str(gpus)}}]}
        if parent is not None:
            wanted["parent"] = self.queue(parent)
        self._queues.append(self.queue(name))
        self.api.create(f"{GROUP}/queues", _object("Queue", self.queue(name), wanted))

    def queue(self, name: str) -> str:
        """The full name of a queue: they are not in a namespace."""
        return f"{self.namespace}-{name}"

    def edit_queue(self, name: str, **spec: Any) -> None:
        """Change fields of a queue."""
        self.api.patch(f"{GROUP}/queues/{self.queue(name)}", {"spec": spec})

    def set_quota(self, name: str, gpus: int) -> None:
        """Another guarantee."""
        self.edit_queue(name, resources=[{"flavor": self.namespace, "guaranteed": {GPU: str(gpus)}}])

    # ---- jobs

    def job(self, name: str, pods: int = 2, gpus: int = 1, queue: str = "red", **more: Any) -> Json:
        """A job of one role. `does` are annotations that KWOK reads; `pod` fields of the pod's spec; else the job's."""
        does = {f"{KWOK}{key.replace('_', '-')}": str(value) for key, value in more.pop("does", {}).items()}
        limits = {"resources": {"limits": {GPU: str(gpus)}}} if gpus else {}
        container = {"name": "main", "image": "none", **limits}
        pod = {"containers": [container], "terminationGracePeriodSeconds": 2, **more.pop("pod", {})}
        template = {"metadata": {"annotations": does}, "spec": pod}
        role = {"name": "worker", "replicas": pods, **more.pop("role", {}), "template": template}
        wanted = {"queue": self.queue(queue), "roles": [role], **more}
        document = _object("TrainingJob", name, wanted)
        document["metadata"]["namespace"] = self.namespace
        return document

    def submit(self, name: str, pods: int = 2, gpus: int = 1, queue: str = "red", **more: Any) -> Json:
        """Create it, once the operator has seen the objects that it depends on."""
        self.wait_until_seen()
        return self.api.create(self._jobs(), self.job(name, pods, gpus, queue, **more))

    def edit(self, name: str, **spec: Any) -> None:
        """Change fields of a job's spec."""
        self.api.patch(f"{self._jobs()}/{name}", {"spec": spec})

    def delete(self, name: str, **options: Any) -> None:
        """Delete a job."""
        self.api.delete(f"{self._jobs()}/{name}", **options)

    def get(self, name: str) -> Json | None:
        """A job as it is; None when there is none."""
        try:
            return self.api.get(f"{self._jobs()}/{name}")
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def status(self, name: str) -> Json:
        """A job's status; empty when there is none."""
        return (self.get(name) or {}).get("status") or {}

    def phase(self, name: str) -> str:
        """A job's phase; "" before it has one, and when it is gone."""
        return str(self.status(name).get("phase", ""))

    def attempt(self, name: str) -> int:
        """How often a job was started anew."""
        return int(self.status(name).get("attempt", 0))

    def condition(self, name: str, kind: str) -> Json:
        """A condition of a job; empty when it has none."""
        return next((one for one in self.status(name).get("conditions", []) if one["type"] == kind), {})

    def waits_for(self, name: str) -> str:
        """The reason why a job is not admitted."""
        admitted = self.condition(name, "Admitted")
        return str(admitted.get("reason", "")) if admitted.get("status") == "False" else ""

    def pods(self, name: str | None = None) -> list[Json]:
        """The pods of a job, or of the namespace."""
        query = {} if name is None else {"labelSelector": f"muster.dev/job={name}"}
        return self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", **query)

    def nodes_of(self, name: str) -> list[str]:
        """Where a job's pods are bound, in order of their indexes; "" for one that is not."""
        pods = sorted(self.pods(name), key=lambda pod: int(pod["metadata"]["labels"]["muster.dev/index"]))
        return [str(pod["spec"].get("nodeName", "")) for pod in pods]

    def annotate(self, name: str, index: int = 0, **does: Any) -> None:
        """Steer a running pod: annotations that KWOK reads."""
        pod = next(pod for pod in self.pods(name) if pod["metadata"]["labels"]["muster.dev/index"] == str(index))
        annotations = {f"{KWOK}{key.replace('_', '-')}": str(value) for key, value in does.items()}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        self.api.patch(path, {"metadata": {"annotations": annotations}})

    def events(self, name: str) -> list[str]:
        """Reasons of the Events of a job, in the order in which they were recorded."""
        events = self.api.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        ours = [
            one for one in events if one["regarding"].get("name") == name and one["regarding"]["kind"] == "TrainingJob"
        ]
        return [one["reason"] for one in sorted(ours, key=lambda one: one["eventTime"] or "")]

    # ---- waiting

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = WAIT_S) -> None:
        """Wait until it holds; AssertionError that shows the jobs and the operator's log if it does not."""
        until, pause = time.monotonic() + seconds, 0.02
        while not holds():
            failure = self._failure() if time.monotonic() < until else f"not within {seconds} s"
            assert not failure, (
                f"{what}: {failure}\n{self.plane.kubectl('get', 'tj,pods', '-o', 'wide', '-n', self.namespace)}"
            )
            time.sleep(pause)
            pause = min(pause * 1.2, 0.25)  # each look costs the API server and the operator some

    def wait_until_seen(self, by: Operator | None = None) -> None:
        """Wait until the operator has seen what this part of the cluster is made of: it watches each resource on its
        own, and may see a job before a queue that was edited long before. `by`: one that comes and goes."""
        operator = by or (self._operator() if self._operator is not None else None)
        if operator is None:
            return
        for path in (f"{GROUP}/queues", f"{GROUP}/flavors", "/api/v1/nodes", "/api/v1/namespaces", "/api/v1/pods"):
            newest = max((int(one["metadata"]["resourceVersion"]) for one in self.api.items(path)), default=0)
            resource = path.rpartition("/")[2]
            self.wait(
                f"the operator sees {resource}",
                lambda resource=resource, newest=newest: operator.has_seen(resource) >= newest,  # type: ignore[misc]
            )

    def wait_for_phase(self, name: str, phase: str) -> None:
        """Wait until a job is in this phase."""
        self.wait(f"{name} is {phase}", lambda: self.phase(name) == phase)

    def wait_for_attempt(self, name: str, attempt: int) -> None:
        """Wait until a job runs in this attempt."""

        def runs() -> bool:
            status = self.status(name)
            return status.get("phase") == "Running" and status.get("attempt", 0) == attempt

        self.wait(f"{name} runs in attempt {attempt}", runs)

    def wait_for_reason(self, name: str, reason: str, text: str = "") -> str:
        """Wait until a job waits for this reason, with a sentence that has `text` in it; the sentence."""
        sentences: list[str] = []

        def waits() -> bool:
            admitted = self.condition(name, "Admitted")
            sentences.append(str(admitted.get("message", "")))
            return (admitted.get("status"), admitted.get("reason")) == ("False", reason) and text in sentences[-1]

        self.wait(f"{name} waits: {reason} {text}", waits)
        return sentences[-1]

    def wait_for_event(self, name: str, reason: str) -> None:
        """Wait until an Event of a job tells so: Events are sent when there is time."""
        self.wait(f"an Event tells of {name}: {reason}", lambda: reason in self.events(name))

    def end(self, name: str, exit_code: int = 0) -> None:
        """Let every pod of a job that runs end by itself."""
        for index in range(len(self.pods(name))):
            self.annotate(name, index, exit_code=exit_code)

    def tear_down(self) -> None:
        """Take away what is not in the namespace, jobs first so that queues may go."""
        for job in self.api.items(self._jobs()):
            self.api.delete_if_exists(f"{self._jobs()}/{job['metadata']['name']}")
        self.api.delete(f"/api/v1/namespaces/{self.namespace}/pods", gracePeriodSeconds=0)
        for thing in (*(f"queues/{queue}" for queue in reversed(self._queues)), f"flavors/{self.namespace}"):
            self.api.delete_if_exists(f"{GROUP}/{thing}")
        there = {node["metadata"]["name"] for node in self.api.items("/api/v1/nodes")}
        self.plane.delete_nodes(*(name for name in self._nodes if name in there))

    def _failure(self) -> str:
        """What is wrong with the operator, or nothing."""
        one = self._operator() if self._operator is not None else None
        return "" if one is None or one.running else f"the operator ended\n{one.tail()}"

    def _jobs(self) -> str:
        return f"{GROUP}/namespaces/{self.namespace}/trainingjobs"


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
