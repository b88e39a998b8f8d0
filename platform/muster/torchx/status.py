"""The status of a job for TorchX: its types (pure), and sentences for `torchx run --wait` and `--log`."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus, macros

from muster.api.env_vars import redact
from muster.api.quantity import parse_quantity
from muster.api.spec import TERMINAL_PHASES, LastFailure, RoleSpec, TrainingJob
from muster.client import LogOptions
from muster.cluster_client.jobs import report_command
from muster.errors import ClusterError, NotFound
from muster.heartbeats.progress import ProgressLines, current_heartbeat
from muster.lifecycle import has_terminated, is_finished
from muster.lifecycle.conditions import ADMITTED, CANCELLED, COMPLETE, FAILED, PODS_READY, find_condition
from muster.lifecycle.placement import index_range
from muster.text import sanitize
from muster.torchx.appdef import REPLICA, app_id

if TYPE_CHECKING:
    from muster.torchx.scheduler import JobClient

PROGRESS_INTERVAL_S = 10.0
REPORT_TIMEOUT_S = 900.0
"""The time that the daemon allows for building a report."""
_POLL_S = 0.3
_PHASES_WITH_LOG = ("Running", "Terminating", *TERMINAL_PHASES)
_STATES = {
    "Pending": AppState.PENDING,
    "Suspended": AppState.PENDING,
    "Admitted": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Terminating": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Cancelled": AppState.CANCELLED,
}

_UNSET = -1  # as TorchX writes it
_ESCAPED_DOLLARS = re.compile(rf"((?:\$\$)*)\$\({REPLICA}\)|(\${{2,}})(?![$(])")


def app_state(job: TrainingJob) -> AppState:
    """The job's state. A finished job is RUNNING until its last process has ended."""
    if is_finished(job.status) and not has_terminated(job.status):
        return AppState.RUNNING
    return _STATES[job.status.phase]


def describe_response(job: TrainingJob, run_dir: object = None, context_name: str = "") -> DescribeAppResponse:
    """The data of `torchx status` and `torchx describe`; `run_dir` if it is on this host, `context_name` if there can
    be several clusters."""
    location = [f"run folder {run_dir}"] if run_dir is not None else []
    location += [f"context {context_name}"] if context_name else []
    state = app_state(job)
    failure = job.status.last_failure
    report = job.status.traces.report if job.status.traces else ""
    return DescribeAppResponse(
        app_id=app_id(job.metadata.name, job.metadata.namespace or "default"),
        state=state,
        num_restarts=job.status.restarts,
        msg="; ".join([status_message(job), *location]),
        structured_error_msg=json.dumps(_elastic_error(failure)) if failure and state == AppState.FAILED else NONE,
        ui_url=_report_url(report),
        roles_statuses=list(_role_statuses(job, state)),
        roles=[_role(role, job.spec.failure_policy.max_restarts, context_name) for role in job.spec.roles],
    )


def _report_url(report: str) -> str | None:
    """The report's URL for a browser."""
    return f"file://{report}" if report.startswith("/") else report or None


def _elastic_error(failure: LastFailure) -> dict[str, object]:
    """The structured error that both TorchX versions read: message, exit code, time."""
    text = sanitize(failure.log_tail).strip() or failure.reason
    details = {"timestamp": int(failure.at or 0), "node": failure.node, "pod": failure.pod}
    return {"message": {"message": text, "errorCode": failure.exit_code, "extraInfo": details}}


def _role_statuses(job: TrainingJob, state: AppState) -> Iterator[RoleStatus]:
    failure = job.status.last_failure
    for part in job.status.placement:
        replicas = []
        for node, index in ((share.node, index) for share in part.nodes for index in index_range(share.indexes)):
            status = ReplicaStatus(id=index, role=part.role, state=state, hostname=node)
            prefix = f"{job.metadata.name}-{part.role}-{index}-"
            if failure is not None and state == AppState.FAILED and failure.pod.startswith(prefix):
                status.structured_error_msg = json.dumps(_elastic_error(failure))
            replicas.append(status)
        yield RoleStatus(role=part.role, replicas=replicas)


def _role(role: RoleSpec, max_restarts: int, context: str) -> Role:
    container = role.template.spec.containers[0]
    amounts = {**container.resources.limits, **container.resources.requests}
    resources = {name: parse_quantity(amount, name) for name, amount in amounts.items()}
    return Role(
        name=role.name,
        image=container.image or "",
        min_replicas=role.min_replicas,
        entrypoint=_unescape_dollars(container.command[0]) if container.command else "",
        args=[_unescape_dollars(arg) for arg in (*container.command[1:], *container.args)],
        env={
            variable.name: redact(variable.name, _unescape_dollars(variable.value or "")) for variable in container.env
        },
        num_replicas=role.replicas,
        max_retries=max_restarts,
        metadata={"context": context} if context else {},
        resource=Resource(
            cpu=-(-resources.pop("cpu") // 1000) if "cpu" in resources else _UNSET,
            gpu=resources.pop("nvidia.com/gpu", 0),
            memMB=resources.pop("memory") // 2**20 if "memory" in resources else _UNSET,
            devices=resources,
        ),
    )


def _unescape_dollars(text: str) -> str:
    """The inverse of the escape in `to_training_job`."""

    def replace(match: re.Match[str]) -> str:
        dollars = "$" * (len(match[1] or match[2] or "") // 2)
        return dollars if match[2] else f"{dollars}{macros.replica_id}"

    return _ESCAPED_DOLLARS.sub(replace, text)


def status_message(job: TrainingJob) -> str:
    """One sentence: queue position and reason while it waits, nodes while it runs, result at the end."""
    status = job.status
    if status.phase == "Pending":
        return f"waits in queue {job.spec.queue}{_queue_position(job)}{_admission_message(job)}{_estimated_start(job)}"
    if status.phase == "Suspended":
        return f"suspended; to resume it: muster resume {job.metadata.name}"
    if status.phase == "Admitted":
        return _condition_message(job, PODS_READY) or f"admitted to {_node_names(job)}; its pods are starting"
    if status.phase == "Running":
        again = f", attempt {status.attempt}" if status.attempt else ""
        return f"runs on {_node_names(job)}{again}"
    if status.phase == "Succeeded":
        return _condition_message(job, COMPLETE) or "succeeded"
    if status.phase == "Terminating":
        return f"stopping: {_condition_message(job, CANCELLED) or 'cancelled'}"
    if status.phase == "Cancelled":
        return _condition_message(job, CANCELLED) or "cancelled"
    return _condition_message(job, FAILED) or "failed"


def change_key(job: TrainingJob) -> tuple[object, ...] | None:
    """A message is reported once per value of this key: queue position, reason, start and restart, without the
    estimate, which changes with every cycle. None: nothing to report, as the job has no reason yet or is running."""
    status = job.status
    if status.phase in ("Pending", "Suspended") and (reason := _admission_message(job)):
        return (status.phase, status.attempt, status.queue_position, reason)
    if status.phase == "Admitted":
        return (status.phase, status.attempt, status_message(job))
    return None


def _queue_position(job: TrainingJob) -> str:
    position = job.status.queue_position
    if position is None:
        return ""
    return f", position {position}"


def _admission_message(job: TrainingJob) -> str:
    message = _condition_message(job, ADMITTED)
    return f": {message}" if message else ""


def _estimated_start(job: TrainingJob) -> str:
    start = job.status.estimated_start
    if start is None:
        return ""
    return f"; expected to start at {datetime.fromtimestamp(start):%H:%M:%S}"  # noqa: DTZ006  (the reader's own clock)


def _node_names(job: TrainingJob) -> str:
    names = sorted({share.node for part in job.status.placement for share in part.nodes})
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more nodes" if len(names) > 4 else "")


def _condition_message(job: TrainingJob, kind: str) -> str:
    condition = find_condition(job.status, kind)
    return sanitize(condition.message) if condition is not None else ""


@dataclass(slots=True)
class _JobProgress:
    """What was reported of one job."""

    progress_lines: ProgressLines = field(default_factory=lambda: ProgressLines(PROGRESS_INTERVAL_S))
    started_attempt: int | None = None  # the last attempt reported as running
    ended: bool = False


@dataclass(slots=True)
class ProgressReporter:
    """Reports the progress of jobs. `clock` returns Unix seconds, as in heartbeats."""

    clock: Callable[[], float] = time.time
    _progress_by_app: dict[str, _JobProgress] = field(default_factory=dict)

    def next_lines(self, app: str, job: TrainingJob, client: JobClient) -> Iterator[str]:
        """Lines that were not reported yet, from the job's start on; `StatusReporter` reports what precedes it."""
        progress, status = self._progress_by_app.setdefault(app, _JobProgress()), job.status
        name, namespace = job.metadata.name, job.metadata.namespace or "default"
        if status.phase == "Running":
            if progress.started_attempt != status.attempt:
                progress.started_attempt = status.attempt
                yield status_message(job)
            line = progress.progress_lines.next_line(
                current_heartbeat(client.heartbeats(name, namespace), status.attempt), self.clock()
            )
            if line is not None:
                yield line
        elif has_terminated(status) and not progress.ended:
            progress.ended = True
            run_dir = client.run_dir(name, namespace)
            location = "" if run_dir is None or status.started_at is None else f"; run folder {run_dir}"
            yield f"{status.phase.lower()}: {status_message(job)}{location}"


@dataclass(frozen=True, slots=True)
class FollowedPod:
    """A pod whose log is followed. `is_primary`: pod 0 of the first role, after whose log the job's end is printed."""

    name: str
    namespace: str
    role: str
    index: int
    is_primary: bool


@dataclass(slots=True)
class StatusReporter:
    """Reports each status of a job once, although `torchx run --log` follows it in several threads."""

    _last_reported: dict[str, object] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_message(self, app: str, job: TrainingJob) -> str | None:
        """The status message if it was not reported yet, else None."""
        key = change_key(job)
        with self._lock:
            if key is None or self._last_reported.get(app) == key:
                return None
            self._last_reported[app] = key
        return status_message(job)


def follow(
    client: JobClient, pod: FollowedPod, first_attempt: int | None, app_id: str, reporter: StatusReporter
) -> Iterator[str]:
    """Log lines of every attempt from `first_attempt` (None: the current one) to the job's end, and status messages."""
    attempt = first_attempt
    job: TrainingJob | None = None
    try:
        for job in client.watch(pod.name, pod.namespace):
            sentence = reporter.next_message(app_id, job)
            if sentence is not None:
                yield f"muster: {sentence}"
            current = job.status.attempt
            attempt = current if attempt is None else attempt
            while attempt < current or (attempt == current and job.status.phase in _PHASES_WITH_LOG):
                options = LogOptions(attempt=attempt, follow=attempt == current)
                yield from client.log_lines(pod.name, pod.namespace, pod.role, pod.index, options)
                attempt += 1
        if job is not None and pod.is_primary:
            yield from _end_lines(client, pod, job)
    except NotFound:
        yield "muster: the job was deleted"
    except ClusterError as error:
        yield f"muster: the log cannot be followed any more: {error}"


def _end_lines(client: JobClient, pod: FollowedPod, job: TrainingJob) -> Iterator[str]:
    """The job's result, and the location of its report or run folder."""
    yield f"muster: {job.status.phase.lower()}: {status_message(job)}"
    run_dir = client.run_dir(pod.name, pod.namespace)
    if run_dir is None:  # inside a cluster
        command = report_command(job, getattr(client, "context_name", ""))
        if command is not None:
            yield f"muster: to build the report: {command}"
        return
    if job.spec.trace is None or job.status.started_at is None:
        yield f"muster: run folder {run_dir}"
        return
    deadline = time.monotonic() + REPORT_TIMEOUT_S
    while job.status.traces is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        job = client.job(pod.name, pod.namespace)
    if job.status.traces is not None and job.status.traces.report:
        yield f"muster: report {job.status.traces.report}"
    else:
        yield f"muster: the report could not be built; see {run_dir / 'report' / 'build.log'}"
