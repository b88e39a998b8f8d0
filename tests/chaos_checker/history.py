"""Histories for the checker, built write by write, as etcd would deliver them."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from tests.cluster.chaos.checker.invariants import InvariantChecker
from tests.cluster.chaos.checker.model import Event
from tests.cluster.chaos.checker.objects import STARTS_WITHIN
from tests.cluster.chaos.checker.violation import Violation

GPU = "nvidia.com/gpu"
Json = dict[str, Any]


class History:
    """Writes go to the checker at once; `violations` is what it reported. Time passes only in `wait`."""

    def __init__(self, nodes: int = 2, gpus: int = 4) -> None:
        self.violations: list[Violation] = []
        self.checker = InvariantChecker(self.violations.append)
        self.now = 1_000_000.0
        self.revision = 0
        self._last: dict[tuple[str, str], Json] = {}
        self.queue("root", guaranteed=nodes * gpus)
        for index in range(nodes):
            self.node(f"n{index}", gpus)

    @property
    def rules(self) -> list[str]:
        """Names of the violated guarantees, in order."""
        return [violation.rule for violation in self.violations]

    # ---- any object

    def put(self, kind: str, key: str, document: Json) -> None:
        """Create or replace an object."""
        self.revision += 1
        self._last[kind, key] = document
        self.checker.apply(Event(self.revision, kind, key, deepcopy(document), self.now))

    def remove(self, kind: str, key: str) -> None:
        """Remove an object."""
        self.revision += 1
        del self._last[kind, key]
        self.checker.apply(Event(self.revision, kind, key, None, self.now))

    def wait(self, seconds: float, *, leads: bool = True) -> None:
        """Let time pass, the Lease renewed twice a second."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            if leads:
                self.lease("operator-a")
            self.checker.tick(self.now)

    def end(self) -> None:
        """The run has ended."""
        self.checker.end(self.now)

    # ---- objects by kind

    def lease(self, holder: str) -> None:
        """`holder` renews the Lease."""
        meta = {"name": "muster-operator", "namespace": "muster-system"}
        body = {"metadata": meta, "spec": {"holderIdentity": holder, "renewTime": self.time()}}
        self.put("Lease", "muster-system/muster-operator", body)

    def node(self, name: str, gpus: int) -> None:
        """A node appears or changes."""
        status = {"allocatable": {GPU: str(gpus), "pods": "110"}}
        self.put("Node", name, {"metadata": {"name": name, "labels": {}}, "spec": {}, "status": status})

    def queue(self, name: str, *, parent: str | None = None, **amounts: int) -> None:
        """A queue with GPUs of flavor `any`: guaranteed, limit, lend."""
        cells = {kind: {GPU: str(amount)} for kind, amount in amounts.items()}
        spec: Json = {"resources": [{"flavor": "any", **cells}]}
        self.put("Queue", name, {"metadata": {"name": name}, "spec": spec | ({"parent": parent} if parent else {})})

    def job(
        self,
        name: str,
        *,
        queue: str = "root",
        gpus: int = 1,
        start_timeout: int = 20,
        starts_within: float | None = None,
        **role: int,
    ) -> None:
        """A user submits a job of one role, `w`, of one pod unless `role` says `replicas`."""
        template = {"spec": {"containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}]}}
        marks = {} if starts_within is None else {STARTS_WITHIN: str(starts_within)}
        body = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": marks},
            "spec": {
                "queue": queue,
                "startTimeoutSeconds": start_timeout,
                "roles": [{"name": "w", "template": template, **role}],
            },
        }
        self.put("TrainingJob", f"ns/{name}", body)

    def status(self, name: str, *true: str, attempt: int = 0, placement: list[str] | None = None, **more: Any) -> None:
        """The operator writes a status: which conditions are true, and the node of each pod."""
        body = deepcopy(self._last["TrainingJob", f"ns/{name}"])
        nodes = [{"node": node, "indexes": str(index)} for index, node in enumerate(placement or [])]
        phases = {
            "Complete": "Succeeded",
            "Failed": "Failed",
            "Cancelled": "Cancelled" if "finishedAt" in more else "Terminating",
            "Suspended": "Suspended",
            "PodsReady": "Running",
        }
        phase = next((phases[one] for one in phases if one in true), "Admitted" if "Admitted" in true else "Pending")
        body["status"] = {
            "phase": phase,
            "conditions": [{"type": one, "status": "True"} for one in true],
            "attempt": attempt,
            "placement": [{"role": "w", "flavor": "any", "nodes": nodes}] if nodes else [],
            "podsWanted": len(nodes),
            "podsReady": len(nodes) if "PodsReady" in true else 0,
            **more,
        }
        self.put("TrainingJob", f"ns/{name}", body)

    def admit(self, name: str, *nodes: str, attempt: int = 0, **more: Any) -> None:
        """The operator admits a job."""
        self.status(name, "Admitted", attempt=attempt, placement=list(nodes), **more)

    def nominate(
        self, name: str, *nodes: str, victims: tuple[str, ...] = (), seconds: float = 60, preempts: bool = False
    ) -> None:
        """The operator nominates capacity for a job; `preempts`: other jobs still use it, victims or not."""
        shares = [{"node": node, "indexes": str(index)} for index, node in enumerate(nodes)]
        nomination = {
            "placement": [{"role": "w", "flavor": "any", "nodes": shares}],
            "victims": [f"uid-{victim}" for victim in victims],
            "expiresAt": self.time(seconds),
        }
        condition = {"type": "Admitted", "status": "False", "reason": "WaitingForPreemption"}
        self.status(name, nomination=nomination, conditions=[condition] if preempts else [])

    def delete(self, name: str) -> None:
        """A user deletes a job, which stays until its pods are gone."""
        body = deepcopy(self._last["TrainingJob", f"ns/{name}"])
        body["metadata"]["deletionTimestamp"] = self.time()
        self.put("TrainingJob", f"ns/{name}", body)

    def pod(self, job: str, index: int, pin: str, *, attempt: int = 0, gpus: int = 1) -> str:
        """The operator creates a pod of a job; its key."""
        name = f"{job}-w-{index}-{attempt}"
        labels = {"muster.dev/role": "w", "muster.dev/index": str(index), "muster.dev/attempt": str(attempt)}
        labels["muster.dev/job-uid"] = f"uid-{job}"
        owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": job, "uid": f"uid-{job}"}
        meta: Json = {"labels": labels, "ownerReferences": [owner]}
        self._pod(name, meta, gpus, pin)
        return f"ns/{name}"

    def unmanaged(self, name: str, gpus: int = 1) -> str:
        """Another client than the operator creates a pod; its key."""
        self._pod(name, {}, gpus, "")
        return f"ns/{name}"

    def _pod(self, name: str, meta: Json, gpus: int, pin: str) -> None:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pin]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        body = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}-{self.revision}", **meta},
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus)}}}],
                "affinity": {"nodeAffinity": required} if pin else {},
            },
            "status": {"phase": "Pending"},
        }
        self.put("Pod", f"ns/{name}", body)

    def bind(self, key: str, node: str) -> None:
        """kube-scheduler binds a pod."""
        self._change(key, lambda body: body["spec"].update(nodeName=node))

    def phase(self, key: str, phase: str, *, ready: bool = False) -> None:
        """A kubelet reports."""
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        self._change(key, lambda body: body.update(status={"phase": phase, "conditions": conditions}))

    def stop(self, key: str, *, disrupted: bool = False, grace: int = 30) -> None:
        """A pod is stopped; `disrupted`: by an eviction of another client, which is marked."""

        def change(body: Json) -> None:
            body["metadata"] |= {"deletionTimestamp": self.time(), "deletionGracePeriodSeconds": grace}
            if disrupted:
                body["status"].setdefault("conditions", []).append({"type": "DisruptionTarget", "status": "True"})

        self._change(key, change)

    def orphan(self, key: str) -> None:
        """The owner of a pod is removed from it."""
        self._change(key, lambda body: body["metadata"].pop("ownerReferences"))

    def _change(self, key: str, change: Any) -> None:
        body = deepcopy(self._last["Pod", key])
        change(body)
        self.put("Pod", key, body)

    def time(self, later: float = 0.0) -> str:
        """Now, as the API server writes it."""
        return datetime.fromtimestamp(self.now + later, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def running(self, name: str, *nodes: str, attempt: int = 0, **job: Any) -> list[str]:
        """A job from its submission until its pods are ready; their keys."""
        if ("TrainingJob", f"ns/{name}") not in self._last:
            self.job(name, **job)
        self.admit(name, *nodes, attempt=attempt)
        gpus = job.get("gpus", 1)
        keys = [self.pod(name, index, node, attempt=attempt, gpus=gpus) for index, node in enumerate(nodes)]
        for key, node in zip(keys, nodes, strict=True):
            self.bind(key, node)
            self.phase(key, "Running", ready=True)
        self.status(name, "Admitted", "PodsReady", attempt=attempt, placement=list(nodes))
        return keys
