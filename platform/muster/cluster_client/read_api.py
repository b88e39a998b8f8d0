"""The operator's read API (`muster.visibility`), as far as it is installed and answers.

Without it a client shows what the API server alone tells: positions and estimates as they were written last, and usage
computed from the jobs that the user may list.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast
from urllib.parse import quote

from muster import model
from muster.api.spec import TrainingJob
from muster.client import JobList, NodeJobs
from muster.errors import ClusterError, NotFound, Refused
from muster.kube.sync_client import KubeClient
from muster.visibility.list_types import (
    JobSummaryList,
    NodeSummaryList,
    PendingJobList,
    QueueSummaryList,
    UsageSummaryList,
)
from muster.visibility.reader import Listing, decode, node_row, queue_row, read_list
from muster.visibility.state import with_live_wait
from muster.visibility.types import BASE_PATH, NodeSummary, PendingJob

T = TypeVar("T")
_OWN_ERRORS = ("Unreachable", "InvalidAnswer")
"""Reasons of errors that are not the operator's: other requests to the API server would fail as well. Unauthorized may
be the operator's, if it does not accept the API server's certificate yet; else the next request fails with it."""
NO_OPERATOR = "the operator does not answer"


class OperatorReader:
    """Each method returns None where there is no answer: the API is not installed, the user may not use it, or the
    operator is down, which `notices` then says. Raises `ClusterError` if the API server does not answer."""

    def __init__(self, kube_client: KubeClient) -> None:
        self._kube_client = kube_client
        self.notices: list[str] = []

    def queue_rows(self) -> list[dict[str, Any]] | None:
        """Rows of `muster.tables.QueueTableRow`."""
        return self._try(
            lambda: [queue_row(queue) for queue in self._read("queues", QueueSummaryList).items],
            "usage is not that of the last scheduling cycle",
        )

    def node_rows(self) -> list[dict[str, Any]] | None:
        """Rows of `muster.tables.NodeTableRow`."""
        return self._try(
            lambda: [node_row(node) for node in self._read("nodes", NodeSummaryList).items],
            "usage is not that of the last scheduling cycle",
        )

    def node_jobs(self, node: str) -> NodeJobs | None:
        """Jobs placed on a node. Those of an operator that has not observed yet that the node is drained are not
        `draining`."""
        answer = self._try(
            lambda: decode(NodeSummary, self.get(f"{BASE_PATH}/nodes/{quote(node, safe='')}")),
            "the jobs of the node are read from the API server",
        )
        if answer is None or answer.job_count is None:
            return None
        names = [f"{job.namespace}/{job.name}" for job in answer.jobs]
        return NodeJobs(names, answer.job_count - len(names), answer.draining)

    def usage(self, parameters: Mapping[str, str], namespace: str | None) -> Listing[Any]:
        """Usage over time, which only the operator knows. Raises `NotFound` NoReadApi if the read API is not installed,
        and as `KubeClient.request` does."""
        try:
            return read_list(self.get, "usage", UsageSummaryList, namespace, parameters=parameters)
        except NotFound as error:
            message = (
                "usage over time comes from the operator's read API, which this cluster does not have, or in a version"
                f" without usage; the chart's value visibility.enabled installs it ({error})"
            )
            raise NotFound(message, reason="NoReadApi") from error

    def namespaces(self) -> list[str] | None:
        """Namespaces with jobs that the user may read."""
        found = self._try(lambda: self._read("jobs", JobSummaryList), "namespaces with jobs are not known")
        return None if found is None else sorted({job.metadata.namespace or "default" for job in found.items})

    def with_live_waits(self, found: JobList, namespace: str | None) -> JobList:
        """The jobs with why they wait as of the last scheduling cycle."""
        if not any(job.status.phase == "Pending" for job in found.jobs):
            return found
        listing = self._try(lambda: self._read("pendingjobs", PendingJobList, namespace), _WRITTEN_LAST)
        return found if listing is None else replace(found, jobs=_with_waits(found.jobs, listing.items))

    def with_live_wait(self, job: TrainingJob) -> TrainingJob:
        """The same for one job."""
        if job.status.phase != "Pending":
            return job
        path = f"{BASE_PATH}/namespaces/{job.metadata.namespace}/pendingjobs/{job.metadata.name}"
        answer = self._try(lambda: decode(PendingJob, self.get(path)), _WRITTEN_LAST)
        return job if answer is None else _with_waits([job], [answer])[0]

    def _read(self, plural: str, page: Any, namespace: str | None = None) -> Listing[Any]:
        return read_list(self.get, plural, page, namespace)

    def get(self, url: str) -> Any:
        """The decoded answer; raises as `KubeClient.request`. One attempt: while the operator is down, each is answered
        with 503."""
        return self._kube_client.request("GET", url, attempts=1)

    def _try(self, read: Callable[[], T], without: str) -> T | None:
        try:
            return read()
        except (NotFound, Refused):
            return None
        except ClusterError as error:
            if error.reason in _OWN_ERRORS:
                raise
            notice = f"{NO_OPERATOR} ({error}): {without}"
            if notice not in self.notices:
                self.notices.append(notice)
            return None


_WRITTEN_LAST = "reasons, positions and estimates of pending jobs are those that it wrote last"


def _with_waits(jobs: Sequence[TrainingJob], pending: Sequence[PendingJob]) -> list[TrainingJob]:
    waits = {
        item.metadata.uid: model.Wait(
            item.metadata.uid,
            cast(model.WaitReason, item.reason),
            item.message,
            item.position,
            item.estimated_start,
        )
        for item in pending
        if item.reason not in ("", "NotReconciled")
    }
    now = time.time()
    return [with_live_wait(job, waits, now) if job.status.phase == "Pending" else job for job in jobs]
