"""The cluster as the verbs of `muster` and TorchX use it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.engine import encode_snapshot
from muster.errors import ClusterError, MusterError, NotFound
from muster.kubernetes import apply, delete, drain, paths, queries, submit
from muster.kubernetes.config import KubeContext, load_config
from muster.kubernetes.decode import heartbeats_from_status, to_event_row
from muster.kubernetes.kube_client import KubeClient
from muster.kubernetes.logs import Replica, read_log
from muster.kubernetes.object_watch import watch_job
from muster.log_options import DEFAULT_LOG_OPTIONS, LogOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.cluster import NodeView
    from muster.job_list import JobList
    from muster.spec import TrainingJob
    from muster.yaml_input import AnyObject

_HEARTBEAT_CACHE_S = 3.0


class KubernetesClusterClient:
    """One user's view of one cluster. Calls raise `Refused` (reason Forbidden where a right is missing), `NotFound`,
    `Conflict`, `InvalidSpec`, `ClusterError`."""

    def __init__(self, kube_client: KubeClient) -> None:
        self._kube_client = kube_client
        self._heartbeats: dict[tuple[str, str], tuple[float, list[dict[str, Any]]]] = {}  # when they were read
        self.namespace = kube_client.config.namespace
        """Where jobs are that name no namespace: that of the kubeconfig's context."""
        self.context_name = kube_client.config.context_name
        """Which cluster it is: the context's name in the kubeconfig."""

    @classmethod
    def connect(cls, context: KubeContext | None = None) -> KubernetesClusterClient:
        """A client of a kubeconfig's cluster. Asks the cluster nothing yet."""
        return cls(KubeClient(load_config(context or KubeContext())))

    def status(self) -> dict[str, Any]:
        """Which cluster it is and what it runs."""
        access = self._kube_client.config
        version = self._kube_client.get("/version")
        return {
            "context": access.context_name,
            "server": access.server,
            "namespace": access.namespace,
            "kubernetes": version.get("gitVersion", ""),
        }

    # ---- objects

    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]:
        """Create or change objects: [{kind, namespace, name, result}], queues with `notices` where there are. All
        are checked, by us and by the server, before the first one is written."""
        return apply.apply_objects(self._kube_client, documents)

    def delete(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """Delete an object: {kind, namespace, name, result}. `deleting`: its pods stop first, a queue waits for its
        unfinished jobs. `Conflict` HasChildren and FlavorInUse as on one host, as far as that may be read."""
        return self.delete_all([(kind, name, namespace)])[0]

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Delete objects, (kind, name, namespace) each, in this order. All are checked, by us and by the server, before
        the first one is deleted; what fails after that says what was deleted before."""
        return delete.delete_objects(self._kube_client, targets)

    def submit(self, job: TrainingJob, dry_run: bool = False) -> TrainingJob:
        """Submit a job, as the API server completed it; `dry_run` only checks. Refused early when it could never start,
        as far as its user may read what that depends on."""
        return self.submit_all([job], dry_run)[0]

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        """Submit jobs, all of them or none: all are checked first, and what was created before one is refused after
        all is deleted again."""
        return submit.submit_jobs(self._kube_client, jobs, dry_run)

    def newly_left_out(self, jobs: Sequence[TrainingJob]) -> list[str]:
        """Pods of a cluster get nothing of our environment, and nobody expects that: no names."""
        return []

    def jobs(self, namespace: str | None = None) -> list[TrainingJob]:
        """Jobs of a namespace, or of all, oldest first; those that can be read."""
        return self.job_list(namespace).jobs

    def job_list(self, namespace: str | None = None) -> JobList:
        """The same, and those that cannot be read."""
        return queries.list_jobs(self._kube_client, namespace)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        """One job."""
        return queries.get_job(self._kube_client, name, namespace)

    def cancel(self, name: str, namespace: str = "default") -> TrainingJob:
        """Stop a job for good; its record stays."""
        job = self.job(name, namespace)
        return job if job.spec.cancel else apply.patch_job_spec(self._kube_client, job, {"cancel": True})

    def suspend(self, name: str, namespace: str = "default") -> TrainingJob:
        """Have a job checkpoint and give its room back until it is resumed."""
        return apply.patch_job_spec(self._kube_client, self.job(name, namespace), {"suspend": True})

    def resume(self, name: str, namespace: str = "default") -> TrainingJob:
        """Let a suspended job wait in its queue again."""
        return apply.patch_job_spec(self._kube_client, self.job(name, namespace), {"suspend": False})

    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob:
        """Change how many pods roles have. Each write says which role it takes to stand where, so that an edit that
        comes in between is not overwritten: `Conflict`."""
        return apply.scale_job(self._kube_client, self.job(name, namespace), replicas)

    # ---- queues and nodes

    def queues(self) -> list[dict[str, Any]]:
        """The queue tree as rows, parents first (`muster.tables`)."""
        return queries.queue_table_rows(self._kube_client)

    def node_views(self) -> tuple[NodeView, ...]:
        """The nodes themselves."""
        return queries.list_nodes(self._kube_client)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as rows."""
        return queries.node_table_rows(self._kube_client)

    def drain(self, node: str) -> list[TrainingJob]:
        """Have all jobs leave a node with a checkpoint, and none come to it; those that are on it. The node is left as
        it was where they may not be listed; what fails after that says that it is drained."""
        queries.check_can_list_all_jobs(self._kube_client)
        drain.drain(self._kube_client, node)
        try:
            return self.jobs_on_node(node)
        except MusterError as error:
            message = f"node {node} is being drained, but which jobs are on it cannot be told"
            error.args = (f"{message}: {error}; undo it with: muster undrain {node}",)
            raise

    def undrain(self, node: str) -> None:
        """Let jobs come to a node again."""
        drain.undrain(self._kube_client, node)

    def jobs_on_node(self, node: str) -> list[TrainingJob]:
        """Jobs whose pods are on a node, or on their way from it. Raises `ClusterError` WrongVersion for one that
        cannot be read: nobody may take the node for empty."""
        return drain.jobs_on_node(self.job_list(None), node)

    def snapshot(self) -> bytes:
        """The world as it can be read now, for `muster replay`."""
        return encode_snapshot(queries.read_snapshot(self._kube_client))

    # ---- what a job does

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """[{at, type, reason, message, count}], oldest first; as long as the cluster keeps them, usually an hour."""
        uid = self.job(name, namespace).metadata.uid
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        found = self._kube_client.list_items(paths.core_path(namespace, "events"), query)
        return sorted(map(to_event_row, found), key=lambda row: float(row["at"]))

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """What the job's status tells, as the beat of rank 0: the operator writes it at most once a minute, so the
        job is read at most every few seconds. While the server does not answer, what it told last."""
        now = time.monotonic()
        read_at, beats = self._heartbeats.get((namespace, name), (float("-inf"), []))
        if now - read_at >= _HEARTBEAT_CACHE_S:
            with contextlib.suppress(NotFound, ClusterError):  # whoever watches is told by `watch`
                beats = heartbeats_from_status(self.job(name, namespace))
            self._heartbeats[namespace, name] = now, beats
        return beats

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        """None: the run folder is inside the cluster."""
        self.job(name, namespace)
        return None

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        """The job now and after every change, until it is finished. Raises `NotFound` when it is deleted."""
        return watch_job(self._kube_client, name, namespace)

    def log_attempts(self, name: str, namespace: str = "default") -> dict[tuple[str, int], int]:
        """By (role, index): the newest attempt that has a log. Empty: only the present one can have any."""
        return {}

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        """Lines of one replica's log, of its present attempt; see `muster.kubernetes.logs`."""
        return read_log(self._kube_client, Replica(namespace, name, role, index), options)


__all__ = ["KubeContext", "KubernetesClusterClient"]
