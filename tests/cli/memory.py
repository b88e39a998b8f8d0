"""A cluster in memory that speaks what the verbs ask: it keeps objects and plays what a test wrote down."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.api.env_vars import OmittedVariables
from muster.api.spec import (
    ObjectMeta,
    Queue,
    TraceCapture,
    TraceCaptureSpec,
    TraceCaptureStatus,
    TrainingJob,
    TrainingJobStatus,
    WorkloadRecord,
)
from muster.api.validation import apply_warnings, check_apply, check_unfinished, with_replicas
from muster.api.yaml_input import AnyObject
from muster.capture.protocol import HungRank, JobStacks
from muster.capture.stacks import describe_stacks
from muster.client import DEFAULT_LOG_OPTIONS, JobList, LogOptions, NodeJobs, UnreadableJobItem
from muster.errors import Conflict, MusterError, NotFound
from muster.kinds.trainingjob.array_changes import with_retry
from muster.kinds.trainingjob.submit import KnownObjects, check_submit
from muster.visibility.list_types import UsageSummaryList
from muster.visibility.reader import Listing
from muster.visibility.types import DataSource, ItemMeta, PageMeta, UsagePoint, UsageSummary

NOW = 1_790_000_000.0
DAY = 86_400.0


def used(name: str, *hours: float, resource: str = "nvidia.com/gpu") -> UsageSummary:
    """Usage of the last days, oldest first."""
    first = -(-NOW // DAY) * DAY - len(hours) * DAY
    points = [UsagePoint(at=first + day * DAY, hours=one) for day, one in enumerate(hours) if one]
    meta = ItemMeta(name=name)
    return UsageSummary(metadata=meta, by="queue", flavor="h200", resource=resource, hours=sum(hours), points=points)


def usage_listing(items: list[UsageSummary], days: int = 10) -> Listing[UsageSummary]:
    """Usage of the days before `NOW`, in steps of a day."""
    source = DataSource(identity="daemon", leading=True, observed_at=NOW)
    until = -(-NOW // 86_400) * 86_400
    page = UsageSummaryList(
        metadata=PageMeta(), source=source, since=until - days * 86_400, until=until, step="day", items=[]
    )
    return Listing(items, page)


@dataclass
class MemoryClient:
    """Jobs and queues by name. `films` are the statuses that a watched job goes through."""

    run_root: Path
    kept_jobs: dict[str, TrainingJob] = field(default_factory=dict)
    kept_queues: dict[str, Queue] = field(default_factory=dict)
    queue_rows: list[dict[str, Any]] = field(default_factory=list)
    kept_notices: list[str] = field(default_factory=list)
    node_rows: list[dict[str, Any]] = field(default_factory=list)
    kept_usage: Listing[UsageSummary] = field(default_factory=lambda: usage_listing([]))
    kept_events: list[dict[str, Any]] = field(default_factory=list)
    stored_heartbeats: list[dict[str, Any]] = field(default_factory=list)
    films: dict[str, list[TrainingJobStatus]] = field(default_factory=dict)
    captures: list[TraceCaptureStatus] = field(default_factory=list)  # the states of the next capture
    hung: list[HungRank] = field(default_factory=list)
    logs: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    logged: dict[tuple[str, int], int] = field(default_factory=dict)  # the newest attempt that has a log
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    on_nodes: list[str] = field(default_factory=list)  # names of jobs
    not_passed: list[str] = field(default_factory=list)
    unreadable: list[UnreadableJobItem] = field(default_factory=list)
    objects: list[WorkloadRecord] = field(default_factory=list)
    namespace: str = "default"  # of the kubeconfig's context

    def status(self) -> dict[str, Any]:
        return {"running": True}

    def apply(self, documents: Sequence[AnyObject]) -> list[dict[str, Any]]:
        check_apply(documents, list(self.kept_queues.values()))
        message = apply_warnings(documents, list(self.kept_queues.values()))
        rows = []
        for item in documents:
            result = "configured" if item.metadata.name in self.kept_queues else "created"
            if isinstance(item, Queue):
                self.kept_queues[item.metadata.name] = item
            row: dict[str, Any] = {"kind": item.kind, "namespace": None, "name": item.metadata.name, "result": result}
            rows.append(row | ({"notices": message[item.metadata.name]} if item.metadata.name in message else {}))
        return rows

    def read(self, url: str) -> Any:
        """This cluster does not have the read API."""
        raise NotFound("the server could not find the requested resource")

    def submit_objects(self, documents: Sequence[dict[str, Any]], dry_run: bool = False) -> list[dict[str, Any]]:
        self.calls.append(("submit_objects", [one["metadata"] for one in documents], dry_run))
        return [{**one, "metadata": {"namespace": "default", **one["metadata"]}} for one in documents]

    def newly_omitted(self, jobs: Sequence[TrainingJob]) -> OmittedVariables | None:
        return OmittedVariables(tuple(self.not_passed), "/home/omitted") if self.not_passed else None

    def delete(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        kept: dict[str, Any] = self.kept_queues if kind == "Queue" else self.kept_jobs
        if name not in kept:
            raise NotFound(f"there is no {kind.lower()} {name!r}")
        if kind == "Queue" and any(job.spec.queue == name for job in self.kept_jobs.values()):
            return {"kind": kind, "namespace": None, "name": name, "result": "deleting"}
        del kept[name]
        space = namespace if kind == "TrainingJob" else None
        return {"kind": kind, "namespace": space, "name": name, "result": "deleted"}

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        missing = [
            name for kind, name, _ in targets if name not in (self.kept_queues if kind == "Queue" else self.kept_jobs)
        ]
        if missing:
            raise NotFound(f"there is no {', '.join(missing)}; nothing was deleted")
        return [self.delete(kind, name, namespace) for kind, name, namespace in targets]

    def submit_all(self, jobs: Sequence[TrainingJob], dry_run: bool = False) -> list[TrainingJob]:
        for job in jobs:
            if job.metadata.name in self.kept_jobs:
                raise Conflict(f"a job {job.metadata.name!r} exists already", reason="AlreadyExists")
            try:
                check_submit(job, KnownObjects(self.kept_queues, {}), 0.0)
            except MusterError as error:
                error.job = f"{job.metadata.namespace or 'default'}/{job.metadata.name}"
                raise
        if not dry_run:
            self.kept_jobs |= {job.metadata.name: job for job in jobs}
        return list(jobs)

    def jobs(self, namespace: str | None = None) -> list[TrainingJob]:
        jobs = self.kept_jobs.values()
        return [job for job in jobs if namespace in (None, job.metadata.namespace or "default")]

    def job_list(self, namespace: str | None = None) -> JobList:
        return JobList(self.jobs(namespace), self.unreadable, self.objects)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        found = self.kept_jobs.get(name)
        if found is None or (found.metadata.namespace or "default") != namespace:
            raise NotFound(f"there is no job {name!r} in namespace {namespace!r}")
        return found

    def job_or_object(self, name: str, namespace: str = "default") -> TrainingJob | WorkloadRecord:
        objects = [one for one in self.objects if one.spec.object_ref.name == name]
        return objects[0] if objects and name not in self.kept_jobs else self.job(name, namespace)

    def cancel(self, name: str, namespace: str = "default") -> None:
        self._check_not_ended(name)
        self.calls.append(("cancel", name, namespace))

    def _check_not_ended(self, name: str) -> None:
        if name in self.kept_jobs and not self.kept_jobs[name].spec.cancel:
            check_unfinished(self.kept_jobs[name], stopping=True)

    def suspend(self, name: str, namespace: str = "default") -> None:
        self._check_not_ended(name)
        self.calls.append(("suspend", name, namespace))

    def resume(self, name: str, namespace: str = "default") -> None:
        self.calls.append(("resume", name, namespace))

    def retry(self, name: str, namespace: str = "default") -> TrainingJob:
        return with_retry(self.job(name, namespace))

    def scale(self, name: str, namespace: str, replicas: Mapping[str, int]) -> TrainingJob:
        self.kept_jobs[name] = with_replicas(self.job(name, namespace), replicas)
        return self.kept_jobs[name]

    def drain(self, node: str) -> NodeJobs:
        self.calls.append(("drain", node))
        return self.jobs_on_node(node)

    def undrain(self, node: str) -> None:
        self.calls.append(("undrain", node))

    def jobs_on_node(self, node: str) -> NodeJobs:
        """What the first call returns is deleted before the second."""
        jobs, self.on_nodes = self.on_nodes, []
        return NodeJobs([f"{self.kept_jobs[name].metadata.namespace or 'default'}/{name}" for name in jobs])

    def live_job(self, name: str, namespace: str = "default") -> TrainingJob:
        return self.job(name, namespace)

    def notices(self) -> list[str]:
        return self.kept_notices

    def queues(self) -> list[dict[str, Any]]:
        return self.queue_rows

    def nodes(self) -> list[dict[str, Any]]:
        return self.node_rows

    def usage(self, parameters: Mapping[str, str], namespace: str | None = None) -> Listing[UsageSummary]:
        self.calls.append(("usage", parameters["by"]))
        return self.kept_usage

    def events(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return self.kept_events

    def heartbeats(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        return self.stored_heartbeats

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        for status in self.films.get(name, []):
            self.kept_jobs[name] = self.job(name, namespace).model_copy(update={"status": status})
            yield self.kept_jobs[name]

    def capture(self, spec: TraceCaptureSpec, namespace: str = "default") -> Generator[TraceCapture, None, None]:
        self.job(spec.job, namespace)
        self.calls.append(("capture", spec))
        for status in self.captures:
            yield TraceCapture(metadata=ObjectMeta(name="c", namespace=namespace), spec=spec, status=status)

    def stacks(self, name: str, namespace: str = "default") -> JobStacks:
        self.job(name, namespace)
        return JobStacks(describe_stacks(self.hung), tuple(self.hung))

    def run_dir(self, name: str, namespace: str = "default") -> Path:
        self.job(name, namespace)
        return self.run_root / name

    def run_in_pod(self, name: str, namespace: str, pod: tuple[str, int], command: Sequence[str]) -> int:
        raise AssertionError("no pod runs")

    def snapshot(self) -> bytes:
        return b"{}"

    def log_attempts(self, name: str, namespace: str = "default") -> dict[tuple[str, int], int]:
        return self.logged

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        self.calls.append(("logs", role, index, options.attempt, options.since, options.until, options.follow))
        lines = self.logs.get((role, index), [])
        yield from lines if options.tail_lines is None else lines[len(lines) - options.tail_lines :]
