"""The client of a Kubernetes cluster that `muster` and TorchX use."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.api.spec import TraceCaptureSpec, WorkloadRecord
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions, check_replica
from muster.cluster_client import apply, captures, jobs, nodes, queries, queued_objects, submit
from muster.cluster_client.decode import heartbeats_from_status, to_event_row
from muster.cluster_client.logs import DEFAULT_LOG_ACCESS, LogAccess, Replica, read_log
from muster.cluster_client.read_api import OperatorReader
from muster.cluster_client.release import Released, release_all
from muster.cluster_client.submit import read_archive, submit_with_archive
from muster.engine import encode_snapshot
from muster.errors import ClusterError, MusterError, NotFound
from muster.kinds.trainingjob.arrays import array_name, index_of
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.config import KubeContext, load_config
from muster.kube.resources import CORE_EVENTS
from muster.kube.sync_client import JsonObject, KubeClient
from muster.workload.related import split_gang_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.api.spec import TraceCapture, TrainingJob
    from muster.api.yaml_input import AnyObject
    from muster.capture.protocol import JobStacks
    from muster.client import JobList, NodeJobs
    from muster.cluster import NodeView
    from muster.cluster_client.pod_streams import PodAddress
    from muster.visibility.reader import Listing
    from muster.visibility.types import UsageSummary

_HEARTBEAT_CACHE_S = 3.0


class KubernetesClusterClient:
    """Calls raise `Refused` (reason Forbidden if RBAC denies them), `NotFound`, `Conflict`, `InvalidSpec`,
    `ClusterError`. `log_access`: how logs are read."""

    def __init__(self, kube_client: KubeClient, *, log_access: LogAccess = DEFAULT_LOG_ACCESS) -> None:
        self._kube_client = kube_client
        self._log_access = log_access
        self._operator = OperatorReader(kube_client)
        self._heartbeats: dict[tuple[str, str], tuple[float, list[dict[str, Any]]]] = {}  # when they were read
        self.namespace = kube_client.config.namespace
        """The namespace of jobs that name none: that of the kubeconfig's context."""
        self.context_name = kube_client.config.context_name
        """The name of the kubeconfig's context."""

    @classmethod
    def connect(cls, context: KubeContext | None = None) -> KubernetesClusterClient:
        """A client of a kubeconfig's cluster; sends no request yet."""
        return cls(KubeClient(load_config(context or KubeContext())))

    def status(self) -> dict[str, Any]:
        """Context, server, namespace and Kubernetes version."""
        config = self._kube_client.config
        version = self._kube_client.get("/version")
        return {
            "context": config.context_name,
            "server": config.server,
            "namespace": config.namespace,
            "kubernetes": version.get("gitVersion", ""),
        }

    # ---- objects

    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]:
        """Create or change objects: [{kind, namespace, name, result}], queues with `notices` if any. All are validated,
        also by a server dry run, before the first is written."""
        return apply.apply_objects(self._kube_client, documents)

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """Delete objects, (kind, name, namespace) each, in this order: {kind, namespace, name, result} each. Result
        `deleting`: a job's pods stop first, a queue waits for its unfinished jobs. All are validated, also by a server
        dry run, before the first is deleted; an error names the objects that were deleted before it. Raises `Conflict`
        HasChildren and FlavorInUse, as far as the user may read the objects."""
        return apply.delete_objects(self._kube_client, targets)

    def submit(self, job: TrainingJob, dry_run: bool = False) -> TrainingJob:
        """Submit a job and return it with server-set fields; `dry_run` only validates. Raises `Refused` if it could
        never start, as far as the user may read what that depends on."""
        return self.submit_all([job], dry_run)[0]

    def submit_with_archive(self, job: TrainingJob, archive: bytes) -> TrainingJob:
        """Submit a job with an archive of code as a ConfigMap that is deleted with it."""
        return submit_with_archive(self._kube_client, job, archive)

    def archive(self, name: str, namespace: str = "default") -> bytes | None:
        """The archive of code that a job was submitted with; None without one."""
        return read_archive(self._kube_client, name, namespace)

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        """Submit jobs, all of them or none: all are checked first, and what was created before one is refused after
        all is deleted again."""
        return submit.submit_jobs(self._kube_client, jobs, dry_run)

    def submit_objects(self, documents: Sequence[JsonObject], dry_run: bool = False) -> list[JsonObject]:
        """Create objects of other kinds, suspended, so that they queue: all of them or none; `dry_run` only
        validates."""
        return queued_objects.submit_objects(self._kube_client, documents, dry_run=dry_run)

    def newly_omitted(self, jobs: Sequence[TrainingJob]) -> None:
        """None: pods of a cluster never inherit the environment of the client."""

    def jobs(self, namespace: str | None = None) -> list[TrainingJob]:
        """Jobs of a namespace, or of all, oldest first; those that can be read."""
        return self.job_list(namespace).jobs

    def job_list(self, namespace: str | None = None) -> JobList:
        """The same, and those that cannot be read; pending ones with positions of the last cycle where the operator
        answers. All namespaces are those that the user may read, if the operator answers which these are."""
        found = queries.list_readable_jobs(self._kube_client, self._operator, namespace)
        return self._operator.with_live_waits(found, namespace)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return queries.get_job(self._kube_client, name, namespace)

    def live_job(self, name: str, namespace: str = "default") -> TrainingJob:
        """One job, if it is pending with its position of the last cycle where the operator answers."""
        return self._operator.with_live_wait(self.job(name, namespace))

    def notices(self) -> list[str]:
        """What was not known in the calls so far, in sentences; each one once."""
        found, self._operator.notices = self._operator.notices, []
        return found

    def read(self, url: str) -> Any:
        """The decoded answer of the read API (`muster.visibility`) to the path and query of a URL, with the user's
        login. Raises `NotFound` if the cluster does not have it, `ClusterError` while no operator answers."""
        return self._operator.get(url)

    def job_or_object(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord:
        """The job of this name, else the Workload of an object of another kind. Raises `NotFound`."""
        try:
            return self.job(name, namespace)
        except NotFound:
            found = queued_objects.find_object(self._kube_client, name, namespace)
            if found is None:
                raise
            return found

    def cancel(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord:
        """Cancel a job, or an object of another kind; its record is kept."""
        return self._ask(name, namespace, {"cancel": True}, queued_objects.CANCEL)

    def suspend(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord:
        """Stop a job after a checkpoint, or an object of another kind, and release its resources until it is
        resumed."""
        return self._ask(name, namespace, {"suspend": True}, queued_objects.SUSPEND)

    def resume(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord:
        """Queue a suspended one again."""
        return self._ask(name, namespace, {"suspend": False}, queued_objects.RESUME)

    def release_objects(self, namespace: str | None, *, dry_run: bool) -> Iterator[Released]:
        """Take Muster's gates out of the templates of suspended objects of other kinds; yields those that have them."""
        return release_all(self._kube_client, namespace, dry_run=dry_run)

    def _ask(
        self, name: str, namespace: str, fields: Mapping[str, bool], annotations: Mapping[str, str | None]
    ) -> TrainingJob | WorkloadRecord:
        """Set fields of a job's spec, or annotations of an object of another kind."""
        found = self.job_or_object(name, namespace)
        if isinstance(found, WorkloadRecord):
            queued_objects.annotate_object(self._kube_client, found, annotations)
            return found
        if fields.get("cancel") and found.spec.cancel:
            return found
        if index_of(found) is not None:
            return jobs.patch_index(self._kube_client, found, dict(fields))
        return jobs.patch_job_spec(self._kube_client, found, dict(fields))

    def retry(self, name: str, namespace: str = "default") -> TrainingJob:
        """Queue the failed indices of an array again. Raises `InvalidSpec` if it is none, `Conflict` if none has
        failed."""
        return jobs.retry_array(self._kube_client, self.job(name, namespace))

    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob:
        """Change the number of pods of roles. Raises `Conflict` rather than overwrite a concurrent edit."""
        return jobs.scale_job(self._kube_client, self.job(name, namespace), replicas)

    # ---- queues and nodes

    def queues(self) -> list[dict[str, Any]]:
        """The queue tree as rows, parents first (`muster.tables`)."""
        return queries.queue_table_rows(self._kube_client, self._operator)

    def node_views(self) -> tuple[NodeView, ...]:
        return nodes.list_nodes(self._kube_client)

    def nodes(self) -> list[dict[str, Any]]:
        return queries.node_table_rows(self._kube_client, self._operator)

    def usage(self, parameters: Mapping[str, str], namespace: str | None = None) -> Listing[UsageSummary]:
        """Usage over time, from the operator; `parameters`: those of the read API (docs/tasks/usage.md). Raises
        `NotFound` NoReadApi if the read API is not installed."""
        return self._operator.usage(parameters, namespace)

    def drain(self, node: str) -> NodeJobs:
        """Drain a node: its jobs move away after a checkpoint and no job is placed there. Returns the jobs on it. The
        node is unchanged if neither the operator tells its jobs nor the user may list all; a later error says that the
        node is being drained."""
        if self._operator.node_jobs(node) is None:
            queries.check_can_list_all_jobs(self._kube_client)
        nodes.drain(self._kube_client, node)
        try:
            return self.jobs_on_node(node)
        except MusterError as error:
            message = f"node {node} is being drained, but its jobs cannot be listed"
            error.args = (f"{message}: {error}; to undo the drain: muster undrain {node}",)
            raise

    def undrain(self, node: str) -> None:
        nodes.undrain(self._kube_client, node)

    def jobs_on_node(self, node: str) -> NodeJobs:
        """Jobs with pods on a node, terminating ones included, from the operator; where it does not answer, from all
        jobs. Raises `ClusterError` WrongVersion for one of these that cannot be decoded, since the node is then not
        known to be empty."""
        found = self._operator.node_jobs(node)
        if found is not None:
            return found
        return nodes.jobs_on_node(queries.list_jobs(self._kube_client, None), node)

    def snapshot(self) -> bytes:
        """A scheduling snapshot of the current state, for `muster replay`."""
        return encode_snapshot(queries.read_snapshot(self._kube_client))

    # ---- what a job does

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """[{at, type, reason, message, count}], oldest first; clusters usually keep them for an hour."""
        found = self.job_or_object(name, namespace)
        uid = found.spec.object_ref.uid if isinstance(found, WorkloadRecord) else found.metadata.uid
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        events = self._kube_client.list_items(CORE_EVENTS.path(namespace), query)
        return sorted(map(to_event_row, events), key=lambda row: float(row["at"]))

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """The progress in the job's status as a heartbeat of rank 0. The operator writes it at most once a minute, so
        it is cached for a few seconds. While the server does not answer, the last one."""
        now = time.monotonic()
        read_at, cached = self._heartbeats.get((namespace, name), (float("-inf"), []))
        if now - read_at >= _HEARTBEAT_CACHE_S:
            with contextlib.suppress(NotFound, ClusterError):  # `watch` reports these
                cached = heartbeats_from_status(self.job(name, namespace))
            self._heartbeats[namespace, name] = now, cached
        return cached

    def capture(self, spec: TraceCaptureSpec, namespace: str = "default") -> Generator[TraceCapture, None, None]:
        """Profile steps of a running job; yields the capture after each change, until it is finished. Closing the
        iterator deletes it. Raises `NotFound` for an unknown job, `ClusterError` NoOperator."""
        self.job(spec.job, namespace)
        return captures.run_capture(self._kube_client, spec, namespace)

    def stacks(self, name: str, namespace: str = "default") -> JobStacks:
        """The stacks of the ranks of a job, whose steps they do not disturb: a TraceCapture of the kind Stacks. Raises
        `NotFound` for an unknown job, `ClusterError` NoOperator, and `Refused` if the operator refuses."""
        return captures.read_stacks(self.capture(TraceCaptureSpec(job=name, kind="Stacks"), namespace))

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        """None: the run folder is inside the cluster."""
        self.job(name, namespace)
        return None

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        """The job now and after every change, until it is finished. Raises `NotFound` when it is deleted."""
        found = None if split_gang_name(name) is None else self.job(name, namespace)
        index = None if found is None else index_of(found)
        if found is None or index is None:
            return jobs.watch_job(self._kube_client, name, namespace)
        return jobs.watch_index(jobs.watch_job(self._kube_client, array_name(found), namespace), index)

    def log_attempts(self, name: str, namespace: str = "default") -> dict[tuple[str, int], int]:
        """By (role, index): the newest attempt that has a log. Empty: only the current attempt has logs."""
        return {}

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        """Lines of one replica's log in the current attempt; see `muster.cluster_client.logs`."""
        return read_log(self._kube_client, Replica(namespace, name, role, index), options, self._log_access)

    def run_in_pod(self, name: str, namespace: str, pod: tuple[str, int], command: Sequence[str]) -> int:
        """Run a command in the first container of a (role, index) of the current attempt, with this process's stdin and
        output. Returns its exit code."""
        from muster.cluster_client.pod_streams import run_in_pod

        return run_in_pod(self._kube_client, self._pod_address(name, namespace, pod), command)

    def forward_port(self, name: str, namespace: str, pod: tuple[str, int], listener: socket.socket, port: int) -> None:
        """Serve the connections that a listener accepts from a port of a pod, until Ctrl-C."""
        from muster.cluster_client.pod_streams import forward_port

        forward_port(self._kube_client, self._pod_address(name, namespace, pod), listener, port)

    def _pod_address(self, name: str, namespace: str, pod: tuple[str, int]) -> PodAddress:
        from muster.cluster_client.pod_streams import PodAddress

        job = self.job(name, namespace)
        check_replica(job, *pod)
        container = next(one for one in job.spec.roles if one.name == pod[0]).template.spec.containers[0].name
        return PodAddress(namespace, pod_name(name, job.metadata.uid, *pod, job.status.attempt), container)


__all__ = ["KubeContext", "KubernetesClusterClient"]
