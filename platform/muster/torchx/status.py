"""The status of a job for TorchX: its types (pure), and progress for `torchx run --wait`."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus, macros

from muster.api.env_vars import redact
from muster.api.quantity import parse_quantity
from muster.api.spec import LastFailure, RoleSpec, TrainingJob
from muster.follow import has_report, report_lines, status_message
from muster.heartbeats.progress import ProgressLines, current_heartbeat
from muster.text import sanitize
from muster.torchx.appdef import REPLICA, app_id
from muster.workload.conditions import has_terminated, is_finished
from muster.workload.placement import index_range

if TYPE_CHECKING:
    from muster.client import ClusterClient

PROGRESS_INTERVAL_S = 10.0
DASHBOARD_URL = "MUSTER_DASHBOARD_URL"
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
        ui_url=_ui_url(job, report, run_dir),
        roles_statuses=list(_role_statuses(job, state)),
        roles=[_role(role, job.spec.failure_policy.max_restarts, context_name) for role in job.spec.roles],
    )


def _ui_url(job: TrainingJob, report: str, run_dir: object) -> str | None:
    """What a browser shows of the job: the report once there is one, else its page of the dashboard that the variable
    MUSTER_DASHBOARD_URL names, else its run folder, on this host."""
    if report:
        return f"file://{quote(report)}" if report.startswith("/") else report
    dashboard = os.environ.get(DASHBOARD_URL)
    if dashboard:
        name, namespace = job.metadata.name, job.metadata.namespace or "default"
        return f"{dashboard.rstrip('/')}/jobs/{namespace}/{name}"
    return None if run_dir is None else f"file://{quote(str(run_dir))}"


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

    def next_lines(self, app: str, job: TrainingJob, client: ClusterClient) -> Iterator[str]:
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
            result = f"{status.phase.lower()}: {status_message(job)}"
            if run_dir is not None and has_report(job):
                yield result
                yield from report_lines(client, job, run_dir)
            else:
                yield result if run_dir is None or status.started_at is None else f"{result}; run folder {run_dir}"
