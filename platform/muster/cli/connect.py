"""The cluster client that commands use: `LocalClient` for this host, `KubernetesClusterClient` for a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from muster.cli.cluster_options import selected_context
from muster.log_options import DEFAULT_LOG_OPTIONS, LogOptions

if TYPE_CHECKING:
    from muster.job_list import JobList
    from muster.kube.config import KubeContext
    from muster.kubernetes.cluster_client import KubernetesClusterClient
    from muster.spec import TrainingJob
    from muster.yaml_input import AnyObject


class QueueQuotaRow(TypedDict):
    """One flavor of one queue, shaped like `spec.resources`: quantities by resource name.

    `used` is the charged usage of the queue and its descendants; `borrowed` is the part above the guarantee;
    `available` is what the queue can still admit (negative if over-admitted). `limit` omits unlimited resources.
    """

    flavor: str
    guaranteed: dict[str, str]
    limit: dict[str, str]
    lend: dict[str, str]
    used: dict[str, str]
    borrowed: dict[str, str]
    available: dict[str, str]


class QueueTableRow(TypedDict):
    """One queue; rows come parents first, children by name."""

    name: str
    parent: str | None
    active: bool
    reason: str  # of the condition Active
    message: str
    overcommitted: str | None
    weight: float
    share: float  # of the decayed usage; 0 when nothing was used
    waiting: int  # jobs in this queue and below
    admitted: int
    resources: list[QueueQuotaRow]


class NodeTableRow(TypedDict):
    """One node; quantities by resource name."""

    name: str
    flavor: str | None  # None: no flavor matches, or more than one
    virtual: bool
    ready: bool
    cordoned: bool  # takes no new pods
    draining: bool  # its pods are evicted, too
    labels: dict[str, str]
    allocatable: dict[str, str]
    used: dict[str, str]
    pods: list[str]


class ClusterClient(Protocol):
    """The calls that commands make. They raise `NotFound`, `Refused`, `Conflict`, `ClusterError`: see muster.errors."""

    def status(self) -> dict[str, Any]: ...
    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]: ...
    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]: ...
    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]: ...
    def newly_left_out(self, jobs: Sequence[TrainingJob]) -> list[str]: ...
    def jobs(self, namespace: str | None = None) -> list[TrainingJob]: ...
    def job_list(self, namespace: str | None = None) -> JobList: ...
    def job(self, name: str, namespace: str = "default") -> TrainingJob: ...
    def cancel(self, name: str, namespace: str = "default") -> Any: ...
    def suspend(self, name: str, namespace: str = "default") -> Any: ...
    def resume(self, name: str, namespace: str = "default") -> Any: ...
    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob: ...
    def queues(self) -> list[dict[str, Any]]: ...
    def nodes(self) -> list[dict[str, Any]]: ...
    def drain(self, node: str) -> list[TrainingJob]: ...
    def undrain(self, node: str) -> None: ...
    def jobs_on_node(self, node: str) -> list[TrainingJob]: ...
    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]: ...
    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]: ...
    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]: ...
    def run_dir(self, name: str, namespace: str = "default") -> Path | None: ...
    def log_attempts(self, name: str, namespace: str = "default") -> Mapping[tuple[str, int], int]: ...
    def snapshot(self) -> bytes: ...
    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]: ...


def connect(start: bool = True) -> ClusterClient:
    """A client of the selected cluster. For this host, the daemon is started unless `start` is False."""
    target = selected_context()
    return _connect_local(start) if target is None else _kubernetes_client(target)


def default_namespace() -> str:
    """The namespace of a job that is named without one."""
    target = selected_context()
    return "default" if target is None else _kubernetes_client(target).namespace


def default_list_namespace() -> str | None:
    """The namespace that lists show by default: on this host all (None), in a cluster that of the context."""
    target = selected_context()
    return None if target is None else _kubernetes_client(target).namespace


@cache
def _kubernetes_client(context: KubeContext) -> KubernetesClusterClient:
    from muster.kubernetes.cluster_client import KubernetesClusterClient

    return KubernetesClusterClient.connect(context)


def _local_client(start: bool) -> ClusterClient:
    from muster.local.client import LocalClient

    return LocalClient.connect(start=start)


_connect_local: Callable[[bool], ClusterClient] = _local_client  # tests patch this with an in-memory cluster
