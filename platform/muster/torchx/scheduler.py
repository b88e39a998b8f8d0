"""The base class of both schedulers: TorchX's commands other than submit.

It supports TorchX 0.7.0 and the nightlies. In the nightlies, `list` and `_validate` get the options and a job can be
deleted.
"""

from __future__ import annotations

import atexit
import builtins
import logging
import secrets
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import yaml
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.specs import AppDef, AppDryRunInfo

from muster.api.env_vars import redact, redact_secrets
from muster.api.job_documents import to_kubernetes_name, with_suffix
from muster.api.spec import TrainingJob, max_job_name_length
from muster.client import ClusterClient, LogOptions, check_replica
from muster.errors import ClusterError, DaemonError, NotFound
from muster.follow import FollowedPod, StatusReporter, follow
from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S
from muster.text import sanitize_keep_colors
from muster.torchx.appdef import app_id, split_app_id
from muster.torchx.errors import WatchInterrupted, is_torchx_command, print_errors_without_traceback
from muster.torchx.status import ProgressReporter, app_state, describe_response

logger = logging.getLogger(__name__)
_PAUSE_S = 1.0


class MusterScheduler(Scheduler):  # type: ignore[misc]  # TorchX is not typed
    """The commands other than submit."""

    def __init__(self, backend: str, session_name: str) -> None:
        super().__init__(backend, session_name)
        self._submitted: set[str] = set()
        self._status_reporter = StatusReporter()
        self._followed_apps: set[str] = set()  # apps whose log is followed
        self._progress_reporter = ProgressReporter()

    @abstractmethod
    def _client(self, app_id: str | None = None) -> ClusterClient:
        """The client for a job's cluster; without a job, for the default cluster."""

    @abstractmethod
    def _list_jobs(self, cfg: object) -> builtins.list[TrainingJob]:
        """The jobs that `torchx list` shows."""

    def _context_name(self, app_id: str) -> str:
        """The context of a job's cluster; empty if there is only one cluster."""
        return ""

    def _validate(self, app: AppDef, scheduler: str, cfg: object = None) -> None:
        """TorchX's check that roles have resources is not needed: resources that are not requested are not limited."""

    def submit_dryrun(self, app: AppDef, cfg: Any) -> AppDryRunInfo:
        """As in TorchX's interface. `torchx run --dryrun` prints the app, so its secrets are redacted."""
        info = super().submit_dryrun(app, cfg)
        if is_torchx_command():
            setattr(info, "app" if hasattr(info, "app") else "_app", _without_secrets(app))  # `_app` in TorchX 0.7.0
        return info

    def _record_submission(self, job: TrainingJob) -> str:
        """Record a job of this session, whose log is followed from its first attempt; returns its app id."""
        submitted = app_id(job.metadata.name, job.metadata.namespace or "default")
        self._submitted.add(submitted)
        return submitted

    # ---- status and logs

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """As in TorchX's interface. `torchx run --wait` calls this every second for a job of this session: an
        unreachable API server is retried for `UNREACHABLE_TIMEOUT_S`, then `WatchInterrupted` is raised."""
        with print_errors_without_traceback():
            client = self._client(app_id)
        deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
        while True:
            try:
                return self._describe_once(app_id, client)
            except NotFound as error:
                hint = "; a handle does not name its cluster: set MUSTER_CONTEXT to use another one"
                logger.warning(
                    "%s%s", error, hint if self._context_name(app_id) else ""
                )  # `torchx cancel` prints nothing for an unknown app
                return None
            except ClusterError as error:
                if app_id not in self._submitted:
                    with print_errors_without_traceback():
                        raise
                if isinstance(error, DaemonError) or time.monotonic() > deadline:
                    raise WatchInterrupted(f"{app_id} can no longer be watched: {error}") from error
            time.sleep(_PAUSE_S)

    def _describe_once(self, app_id: str, client: ClusterClient) -> DescribeAppResponse:
        job = client.job(*split_app_id(app_id))
        run_dir = client.run_dir(*split_app_id(app_id))
        if app_id in self._submitted:  # `torchx run --wait` itself prints no status
            self._log_changes(app_id, job, client)
        return describe_response(job, run_dir, self._context_name(app_id))

    def _log_changes(self, app_id: str, job: TrainingJob, client: ClusterClient) -> None:
        if sentence := self._status_reporter.next_message(app_id, job):
            logger.info(sentence)
        if app_id not in self._followed_apps:
            for line in self._progress_reporter.next_lines(app_id, job, client):
                logger.info(line)

    def describe_native(self, app_id: str) -> AppDryRunInfo | None:
        try:
            return AppDryRunInfo(self._client(app_id).job(*split_app_id(app_id)), to_yaml)
        except NotFound:
            return None

    def list(self, cfg: object = None) -> builtins.list[ListAppResponse]:
        with print_errors_without_traceback():
            jobs = self._list_jobs(cfg)
        return [
            ListAppResponse(app_id=app_id(job.metadata.name, job.metadata.namespace or "default"), state=app_state(job))
            for job in jobs
        ]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        if streams not in (None, Stream.COMBINED):
            message = f"streams: must be omitted or combined, since stdout and stderr are one log; got {streams.value}"
            raise ValueError(message)
        name, namespace = split_app_id(app_id)
        with print_errors_without_traceback():
            client = self._client(app_id)
            job = client.job(name, namespace)
            role = to_kubernetes_name(role_name)
            if should_tail:
                check_replica(job, role, k)
        if should_tail and since is None and until is None:
            self._followed_apps.add(app_id)
            pod = FollowedPod(name, namespace, role, k, is_primary=k == 0 and role == job.spec.roles[0].name)
            first_attempt = 0 if app_id in self._submitted else None
            lines = follow(client, pod, first_attempt, app_id, self._status_reporter)
        else:
            options = LogOptions(since=_unix_seconds(since), until=_unix_seconds(until), follow=should_tail)
            with print_errors_without_traceback():
                lines = client.log_lines(name, namespace, role, k, options)
        terminated_lines = _with_newlines(lines)
        return filter_regex(regex, terminated_lines) if regex else terminated_lines

    # ---- cancel and delete

    def close(self) -> None:
        """After an interrupt of `torchx run --wait`, print below TorchX's output that the job continues."""
        super().close()
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):
            for name, namespace in map(split_app_id, sorted(self._submitted)):
                message = f"the job continues; to stop it: muster cancel {namespace}/{name}"
                atexit.register(print, message, file=sys.stderr)

    def _cancel_existing(self, app_id: str) -> None:
        self._client(app_id).cancel(*split_app_id(app_id))

    def _delete_existing(self, app_id: str) -> None:
        self._client(app_id).delete_all([("TrainingJob", *split_app_id(app_id))])


def unique_job_name(app: AppDef) -> str:
    """A unique job name for a run of this app."""
    max_length = max_job_name_length((to_kubernetes_name(role.name), role.num_replicas) for role in app.roles)
    return with_suffix(app.name, secrets.token_hex(3), max_length)


def to_yaml(job: TrainingJob) -> str:
    """The manifest for `muster submit`, with secrets in environment variables redacted."""
    document = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return str(yaml.safe_dump(redact_secrets(document), sort_keys=False, width=120))


def _without_secrets(app: AppDef) -> AppDef:
    roles = [
        replace(role, env={name: redact(name, str(value)) for name, value in role.env.items()}) for role in app.roles
    ]
    return replace(app, roles=roles)


def cfg_mapping(cfg: object) -> Mapping[str, object]:
    """The options of a command; empty if none."""
    return cfg if isinstance(cfg, Mapping) else {}


def _with_newlines(lines: Iterator[str]) -> Iterator[str]:
    """The lines with newlines, as TorchX prints them; on a terminal without control sequences other than colours."""
    shown = sanitize_keep_colors if is_torchx_command() and sys.stdout.isatty() else str
    with print_errors_without_traceback():
        for line in lines:
            yield shown(line) + "\n"


def _unix_seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
