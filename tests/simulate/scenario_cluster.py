"""A simulated cluster whose jobs, queues and flavors a test edits, and whose nodes and pods it makes fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from muster.api import spec
from muster.cluster import NodeView, PodView
from muster.errors import NotFound
from muster.simulate import SimCluster
from muster.simulate.pods import SimJob
from muster.workload.observation import ACTIVE_POD_PHASES


class ScenarioCluster(SimCluster):
    """What users do is at the top; faults follow."""

    def edit(self, uid: str, **fields: object) -> None:
        """Change fields of a job's spec, such as `suspend=True`."""
        job = self.job(uid)
        meta = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
        changed = job.spec.model_copy(update=fields)
        self._jobs[uid].job = job.model_copy(update={"metadata": meta, "spec": changed})
        self._bump_resource_version(uid)

    def set_labels(self, uid: str, labels: Mapping[str, str]) -> None:
        """Replace a job's labels."""
        job = self.job(uid)
        meta = job.metadata.model_copy(update={"labels": dict(labels)})
        self._jobs[uid].job = job.model_copy(update={"metadata": meta})
        self._bump_resource_version(uid)

    def delete(self, uid: str) -> None:
        """Delete a job; it is removed after its pods."""
        job = self.job(uid)
        meta = job.metadata.model_copy(update={"deletion_timestamp": self.now})
        self._jobs[uid].job = job.model_copy(update={"metadata": meta})
        self._bump_resource_version(uid)

    def put_queue(self, queue: spec.Queue) -> None:
        """Create or replace a queue; its status is kept."""
        old = self._queues.get(queue.metadata.name)
        self._queues[queue.metadata.name] = queue if old is None else queue.model_copy(update={"status": old.status})

    def put_flavor(self, flavor: spec.Flavor) -> None:
        """Create or replace a flavor."""
        self._flavors[flavor.metadata.name] = flavor

    def job_uids(self) -> tuple[str, ...]:
        """The uids of all jobs, in the order of submission."""
        return tuple(self._jobs)

    def has_job(self, uid: str) -> bool:
        return uid in self._jobs

    def job(self, uid: str) -> spec.TrainingJob:
        """A job. Raises NotFound."""
        if uid not in self._jobs:
            raise NotFound(f"job {uid} does not exist")
        return self._jobs[uid].job

    def pods(self, uid: str) -> tuple[PodView, ...]:
        """The pods of a job; none if it does not exist."""
        return tuple(self._jobs[uid].pods.values()) if uid in self._jobs else ()

    def fail_node(self, name: str, *, deleted: bool = False) -> None:
        """A node becomes unreachable, or is deleted: its pods are lost."""
        node = self.nodes[name]
        if deleted:
            del self.nodes[name]
        else:
            self.nodes[name] = replace(node, ready=False, not_ready_since=self.now)
        self._node_views = None
        for entry, pod in self._pods_on_node(name):
            if pod.phase in ACTIVE_POD_PHASES:
                self._pods.stop_work(entry, graceful=False)
                self._pods._update(entry, replace(pod, phase="Lost", ready=False))

    def restore_node(self, node: NodeView) -> None:
        """A node becomes ready again without pods, or is added."""
        for entry, pod in self._pods_on_node(node.name):
            if pod.phase == "Lost":
                self._pods.remove(entry, pod.name)
        self.nodes[node.name] = replace(node, ready=True, not_ready_since=None)
        self._node_views = None
        self._event_queue.schedule_now()

    def lose_pod(self, uid: str, index: int = 0) -> None:
        """Remove a running pod. Raises NotFound if there is none with this index."""
        entry = self._jobs[uid]
        pod = next((pod for pod in entry.pods.values() if pod.index == index and pod.phase == "Running"), None)
        if pod is None:
            raise NotFound(f"job {uid} has no running pod {index}")
        self._pods.stop_work(entry, graceful=False)
        self._pods.remove(entry, pod.name)

    def set_rejecting(self, node: str, rejecting: bool) -> None:
        """From now on the node's kubelet rejects new pods, or no longer does."""
        if rejecting:
            self._pods.rejecting_nodes.add(node)
        else:
            self._pods.rejecting_nodes.discard(node)

    def _pods_on_node(self, name: str) -> list[tuple[SimJob, PodView]]:
        return [(entry, pod) for entry in self._jobs.values() for pod in entry.pods.values() if pod.node == name]
