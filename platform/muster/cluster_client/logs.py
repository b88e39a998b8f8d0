"""Logs of a job's pods, read from the API server.

A pod's log is deleted with the pod, and a new attempt deletes the pods of the previous one. Then the copy in the run's
store is read, if there is one, which needs the store's credentials in the environment; its lines have no times. Lines
of pods are requested with timestamps, for `since` and `until` and to resume after an interruption.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from muster.api.spec import ROLE_LABEL, TrainingJob
from muster.client import LogOptions, check_replica
from muster.cluster_client.jobs import is_remote_store
from muster.cluster_client.object_logs import pod_of_object
from muster.cluster_client.queries import get_job
from muster.cluster_client.queued_objects import find_object
from muster.errors import ClusterError, InvalidSpec, NotFound
from muster.kinds.trainingjob.arrays import ARRAY_INDEX_LABEL, split_index_key
from muster.kinds.trainingjob.pods import pod_name
from muster.kube.convert import has_ended, parse_time, read_pod
from muster.kube.resources import PODS
from muster.kube.sync_client import UNREACHABLE_TIMEOUT_S, KubeClient
from muster.workload.conditions import is_finished

_POLL_S = 1.0
_READ_TIMEOUT_S = 60.0
_FATAL_REASONS = frozenset({"Unauthorized", "NotInstalled", "WrongVersion"})
"""Errors that end `follow`. Others are transient: API server or node unreachable, container being created."""
_FOLLOW_IDLE_TIMEOUT_S = 15.0  # then check whether the pod still runs: the sender may have been lost
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ")


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a job."""

    namespace: str
    job: str
    role: str
    index: int


@dataclass(frozen=True, slots=True)
class LogAccess:
    """How logs are read. `reads_stores`: those of deleted pods from the runs' stores, with credentials of this process.
    `limit_bytes`: of what is read of a pod's log, for a server whose memory several users share; the last line may then
    be incomplete."""

    reads_stores: bool = True
    limit_bytes: int | None = None


DEFAULT_LOG_ACCESS = LogAccess()
"""Of a user's own process."""


def read_log(
    kube_client: KubeClient, replica: Replica, options: LogOptions, access: LogAccess = DEFAULT_LOG_ACCESS
) -> Iterator[str]:
    """Lines of one replica; attempt None is the current one.

    Raises `NotFound` for a role or index that the job does not have, and LogUnavailable for an attempt whose pods are
    deleted. With `follow` it waits for the pod, and ends with the attempt.
    """
    try:
        job = _get_job(kube_client, replica)
    except NotFound:
        record = find_object(kube_client, replica.job, replica.namespace)
        if record is None:
            raise
        pod_found = pod_of_object(kube_client, record, replica.role, replica.index)
        address = PODS.path(replica.namespace, pod_found.metadata.name)
        container = pod_found.spec.containers[0].name
        log = _ReplicaLog(kube_client, replica, "", record.status.attempt, address, container, access.limit_bytes)
        return (_follow if options.follow else _read_available)(log, options)
    check_replica(job, replica.role, replica.index)
    job = _with_own_attempt(kube_client, job, replica)
    number = job.status.attempt if options.attempt is None else options.attempt
    pod = pod_name(replica.job, job.metadata.uid, replica.role, replica.index, number)
    address = PODS.path(replica.namespace, pod)
    is_gone = number < job.status.attempt or (is_finished(job.status) and not _exists(kube_client, address))
    if is_gone and access.reads_stores:
        stored = _stored_lines(job, replica, number, options)
        if stored is not None:
            return iter(stored)
    if number < job.status.attempt:
        message = f"attempt {number} of job {replica.job!r} has ended, and its pods and logs are deleted"
        raise NotFound(
            f"{message}; the current attempt is {job.status.attempt}", field="attempt", reason="LogUnavailable"
        )
    role = next(role for role in job.spec.roles if role.name == replica.role)
    container = role.template.spec.containers[0].name
    lines = _follow if options.follow else _read_available
    log = _ReplicaLog(kube_client, replica, job.metadata.uid, number, address, container, access.limit_bytes)
    return lines(log, options)


def _exists(kube_client: KubeClient, path: str) -> bool:
    try:
        kube_client.get(path)
    except NotFound:
        return False
    return True


def _stored_lines(job: TrainingJob, replica: Replica, attempt: int, options: LogOptions) -> list[str] | None:
    """The lines in the run's store; None without one. Raises `NotFound` TimesUnknown for `since` and `until`."""
    location = job.status.traces.location if job.status.traces is not None else ""
    if not is_remote_store(location):
        return None
    from muster.tracing.runs.run_store import read_stored_log

    lines = read_stored_log(location, f"{replica.role}-{replica.index}.attempt-{attempt}.log")
    if lines is None:
        return None
    if options.since is not None or options.until is not None:
        message = f"attempt {attempt} of job {replica.job!r} has ended, and the lines of its stored log have no times"
        raise NotFound(f"{message}; use --tail", field="since", reason="TimesUnknown")
    return lines if options.tail_lines is None else lines[max(0, len(lines) - options.tail_lines) :]


@dataclass(frozen=True, slots=True)
class _ReplicaLog:
    kube_client: KubeClient
    replica: Replica
    uid: str  # of the job; "" for an object of another kind
    attempt: int
    pod_path: str  # its address
    container: str
    limit_bytes: int | None

    def open(self, options: LogOptions, since: float | None) -> Iterator[tuple[float | None, str]]:
        """(time, line) pairs. Times are exact, but the server rounds `sinceTime` to seconds."""
        query = {"timestamps": "true"} | ({"container": self.container} if self.container else {})
        if since is not None:
            query["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
        if options.tail_lines is not None and options.until is None:
            query["tailLines"] = str(options.tail_lines)
        if options.follow:
            query["follow"] = "true"
        if self.limit_bytes is not None:
            query["limitBytes"] = str(self.limit_bytes)
        with self.kube_client.stream(
            f"{self.pod_path}/log", query, _FOLLOW_IDLE_TIMEOUT_S if options.follow else _READ_TIMEOUT_S
        ) as raw:
            for line in raw:
                yield _split_timestamp(line.decode(errors="replace").rstrip("\n"))


def _read_available(log: _ReplicaLog, options: LogOptions) -> Iterator[str]:
    try:
        lines = _within_time_range(log.open(options, options.since), options)
        yield from lines if options.tail_lines is None else deque(lines, maxlen=options.tail_lines)
    except (NotFound, InvalidSpec):  # there is no pod yet, or its container has not started
        return


def _within_time_range(lines: Iterator[tuple[float | None, str]], options: LogOptions) -> Iterator[str]:
    for at, line in lines:
        if options.until is not None and at is not None and at > options.until:
            return
        if options.since is None or at is None or at >= options.since:
            yield line


@dataclass(slots=True)
class _LogPosition:
    """How far a log was read: the time of its newest line, and how many lines were of that time."""

    last_time: float | None = None
    lines_at_last_time: int = 0

    def skip_read(self, stamped: Iterator[tuple[float | None, str]]) -> Iterator[tuple[float | None, str]]:
        """The lines that were not read yet; advances the position."""
        begin, repeated = self.last_time, self.lines_at_last_time
        for at, line in stamped:
            if begin is not None and at is not None and (at < begin or (at == begin and repeated > 0)):
                repeated -= at == begin
                continue
            if at is not None:
                self.lines_at_last_time = self.lines_at_last_time + 1 if at == self.last_time else 1
                self.last_time = at
            yield at, line


def _follow(log: _ReplicaLog, options: LogOptions) -> Iterator[str]:
    """The log from its beginning to the end of the attempt, reopened when the connection breaks."""
    position = _LogPosition()
    ended, deadline = False, time.monotonic() + UNREACHABLE_TIMEOUT_S
    while True:
        begun = position.last_time is not None
        try:
            ended = _has_attempt_ended(log)  # before the read, which then includes the pod's last lines
            deadline = time.monotonic() + UNREACHABLE_TIMEOUT_S
            part = LogOptions(until=options.until, follow=not ended) if begun else replace(options, follow=not ended)
            for at, line in position.skip_read(log.open(part, position.last_time if begun else options.since)):
                if options.until is not None and at is not None and at > options.until:
                    return
                if options.since is None or at is None or at >= options.since:
                    yield line
        except (NotFound, InvalidSpec):  # there is no pod yet, or its container has not started
            pass
        except ClusterError as error:
            if error.reason in _FATAL_REASONS or time.monotonic() > deadline:
                raise
            ended = False  # the last lines may not have been read
        if ended or (options.until is not None and time.time() > options.until + _POLL_S):
            return
        time.sleep(_POLL_S)


def _has_attempt_ended(log: _ReplicaLog) -> bool:
    """Whether the pod has ended, a later attempt has begun, or the job was deleted or recreated."""
    if not log.uid:
        try:
            return has_ended(read_pod(log.kube_client.get(log.pod_path)))
        except NotFound:
            return True
    try:
        job = _get_job(log.kube_client, log.replica)
    except NotFound:
        return True
    if job.metadata.uid != log.uid:
        return True
    if job.status.attempt != log.attempt:
        return job.status.attempt > log.attempt
    try:
        pod = read_pod(log.kube_client.get(log.pod_path))
    except NotFound:
        return is_finished(job.status)
    return has_ended(pod)


def _get_job(kube_client: KubeClient, replica: Replica) -> TrainingJob:
    return get_job(kube_client, replica.job, replica.namespace)


def _with_own_attempt(kube_client: KubeClient, job: TrainingJob, replica: Replica) -> TrainingJob:
    """The job; an index of an array that has ended with its last attempt, whose number only its pods have."""
    uid, index = split_index_key(job.metadata.uid)
    if index is None or not is_finished(job.status):
        return job
    wanted = f"muster.dev/job-uid={uid},{ARRAY_INDEX_LABEL}={index},{ROLE_LABEL}={replica.role}"
    pods = kube_client.list_items(PODS.path(replica.namespace), {"labelSelector": wanted})
    names = {read_pod(one).metadata.name for one in pods}
    name = partial(pod_name, replica.job, job.metadata.uid, replica.role, replica.index)
    attempts = (one for one in range(job.status.attempt, -1, -1) if name(one) in names)
    attempt = next(attempts, job.status.attempt)
    return job.model_copy(update={"status": job.status.model_copy(update={"attempt": attempt})})


def _split_timestamp(line: str) -> tuple[float | None, str]:
    match = _TIMESTAMP.match(line)
    if match is None:
        return None, line
    at = parse_time(match[1] + match[3]) + float(match[2] or 0.0)
    return at, line[match.end() :]
