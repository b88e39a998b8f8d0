"""The interface of a cluster's client: this host's daemon and Kubernetes have the same calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from muster.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from muster.api.env_vars import OmittedVariables
    from muster.api.spec import TraceCapture, TraceCaptureSpec, TrainingJob, WorkloadRecord
    from muster.api.yaml_input import AnyObject
    from muster.capture.protocol import JobStacks


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The part of a replica's log to read: of one attempt (None: the newest that has a log), the lines between two
    times (Unix seconds), and of these the last `tail_lines`. `follow`: wait for new lines until the attempt has ended.
    """

    attempt: int | None = None
    since: float | None = None
    until: float | None = None
    tail_lines: int | None = None
    follow: bool = False


DEFAULT_LOG_OPTIONS = LogOptions()
"""The complete newest log."""


@dataclass(frozen=True, slots=True)
class UnreadableJobItem:
    """A job that cannot be read: as it came, and what is wrong with it."""

    document: Mapping[str, Any]
    error: str

    @property
    def name(self) -> str:
        meta = self.document["metadata"]
        return f"{meta.get('namespace') or 'default'}/{meta['name']}"

    @property
    def queue(self) -> str | None:
        """The queue that it names; None where not even that can be read."""
        return _text_field(self.document.get("spec"), "queue", "default")

    @property
    def phase(self) -> str | None:
        return _text_field(self.document.get("status"), "phase", "Pending")

    @property
    def flavors(self) -> frozenset[str]:
        """Flavors that its pods are on, as far as its status tells."""
        return frozenset(name for part in self._placement() if (name := _text_field(part, "flavor", "")))

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that its pods are on, as far as its status tells."""
        shares = (share for part in self._placement() for share in _list_field(part, "nodes"))
        return frozenset(name for share in shares if (name := _text_field(share, "node", "")))

    def _placement(self) -> list[object]:
        return _list_field(self.document.get("status"), "placement")


@dataclass(frozen=True, slots=True)
class JobList:
    """TrainingJobs, oldest first, those that cannot be read, by name, and the Workloads of objects of other kinds that
    queue."""

    jobs: list[TrainingJob]
    unreadable: Sequence[UnreadableJobItem] = ()
    objects: Sequence[WorkloadRecord] = ()


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """Unfinished jobs that are placed on a node, also those whose pods stop: NAMESPACE/NAME of those that the user may
    read, and the number of the others. `draining`: whether the node was already drained when they were read."""

    names: list[str]
    hidden: int = 0
    draining: bool = True


def _list_field(fields: object, name: str) -> list[object]:
    found = fields.get(name) if isinstance(fields, dict) else None
    return found if isinstance(found, list) else []


def _text_field(fields: object, name: str, default: str) -> str | None:
    found = fields.get(name, default) if isinstance(fields, dict) else default if fields is None else None
    return found if isinstance(found, str) else None


def check_replica(job: TrainingJob, role: str, index: int) -> None:
    """Raises `NotFound` RoleNotFound or ReplicaNotFound for a replica that the job does not have."""
    replicas = {entry.name: entry.replicas for entry in job.spec.roles}
    name = job.metadata.name
    if role not in replicas:
        message = f"job {name!r} has no role {role!r}; it has {', '.join(replicas)}"
        raise NotFound(message, field="role", reason="RoleNotFound")
    if not 0 <= index < replicas[role]:
        message = f"index: must be 0 to {replicas[role] - 1} for role {role!r} of job {name!r}; got {index}"
        raise NotFound(message, field="index", reason="ReplicaNotFound")


class ClusterClient(Protocol):
    """The calls that commands make. They raise `NotFound`, `Refused`, `Conflict`, `ClusterError`: see muster.errors."""

    def status(self) -> dict[str, Any]: ...
    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]: ...
    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]: ...
    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]: ...
    def submit_objects(self, documents: Sequence[dict[str, Any]], dry_run: bool = False) -> list[dict[str, Any]]: ...
    def newly_omitted(self, jobs: Sequence[TrainingJob]) -> OmittedVariables | None: ...
    def jobs(self, namespace: str | None = None) -> list[TrainingJob]: ...
    def job_list(self, namespace: str | None = None) -> JobList: ...
    def job(self, name: str, namespace: str = "default") -> TrainingJob: ...
    def job_or_object(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord: ...
    def live_job(self, name: str, namespace: str = "default") -> TrainingJob: ...
    def notices(self) -> list[str]: ...
    def read(self, url: str) -> Any: ...
    def cancel(self, name: str, namespace: str = "default") -> Any: ...
    def suspend(self, name: str, namespace: str = "default") -> Any: ...
    def resume(self, name: str, namespace: str = "default") -> Any: ...
    def retry(self, name: str, namespace: str = "default") -> TrainingJob: ...
    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob: ...
    def queues(self) -> list[dict[str, Any]]: ...
    def nodes(self) -> list[dict[str, Any]]: ...
    def usage(self, parameters: Mapping[str, str], namespace: str | None = None) -> Any: ...  # a visibility Listing
    def drain(self, node: str) -> NodeJobs: ...
    def undrain(self, node: str) -> None: ...
    def jobs_on_node(self, node: str) -> NodeJobs: ...
    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]: ...
    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]: ...
    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]: ...
    def capture(self, spec: TraceCaptureSpec, namespace: str = "default") -> Generator[TraceCapture, None, None]: ...
    def stacks(self, name: str, namespace: str = "default") -> JobStacks: ...
    def run_dir(self, name: str, namespace: str = "default") -> Path | None: ...
    def log_attempts(self, name: str, namespace: str = "default") -> Mapping[tuple[str, int], int]: ...
    def snapshot(self) -> bytes: ...
    def run_in_pod(self, name: str, namespace: str, pod: tuple[str, int], command: Sequence[str]) -> int: ...
    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]: ...
