"""What a pod of a job wrote, through the API server.

A pod's log goes with the pod: a new attempt deletes the pods of the one before, so only the present attempt can be
read. Every line is asked for with its time, by which a log is cut, and gone on with after an interruption.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from muster.errors import ClusterError, InvalidSpec, NotFound
from muster.excerpt import Excerpt
from muster.kubernetes import paths
from muster.kubernetes.connection import PATIENCE_S, Connection, Json
from muster.kubernetes.reading import read, unix
from muster.lifecycle import is_finished, pod_name
from muster.spec import TrainingJob

_POLL_S = 1.0
_ANSWER_S = 60.0
_FINAL = frozenset({"Unauthorized", "NotInstalled", "WrongVersion"})
"""Why a log cannot be read at all. All else passes: the API server or the node is away, a container is being made."""
_QUIET_S = 15.0  # then it is asked whether the pod still runs: whoever sends may have gone without a word
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d) ")


@dataclass(frozen=True, slots=True)
class Replica:
    """Whose log."""

    namespace: str
    job: str
    role: str
    index: int


def read_log(connection: Connection, replica: Replica, excerpt: Excerpt) -> Iterator[str]:
    """Lines of one replica; without an attempt: of the present one.

    Raises `NotFound` for a role or an index that the job does not have, and LogGone for an attempt whose pods are no
    more. With `follow` it waits for the pod, and ends when the attempt does.
    """
    job = _job(connection, replica)
    _check(job, replica)
    number = job.status.attempt if excerpt.attempt is None else excerpt.attempt
    if number < job.status.attempt:
        told = f"attempt {number} of job {replica.job!r} is over, and its pods are gone with their logs"
        raise NotFound(f"{told}; the present one is {job.status.attempt}", field="attempt", reason="LogGone")
    pod = pod_name(replica.job, job.metadata.uid, replica.role, replica.index, number)
    role = next(role for role in job.spec.roles if role.name == replica.role)
    container = role.template.spec.containers[0].name
    lines = _follow if excerpt.follow else _now
    address = paths.core(replica.namespace, "pods", pod)
    return lines(_Log(connection, replica, job.metadata.uid, number, address, container), excerpt)


@dataclass(frozen=True, slots=True)
class _Log:
    connection: Connection
    replica: Replica
    uid: str  # of the job
    attempt: int
    pod: str  # its address
    container: str

    def open(self, excerpt: Excerpt, since: float | None) -> Iterator[tuple[float | None, str]]:
        """(time, line) pairs; the server's times are exact, its `sinceTime` is to the second."""
        query = {"timestamps": "true"} | ({"container": self.container} if self.container else {})
        if since is not None:
            query["sinceTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since))
        if excerpt.tail is not None and excerpt.until is None:
            query["tailLines"] = str(excerpt.tail)
        if excerpt.follow:
            query["follow"] = "true"
        with self.connection.stream(f"{self.pod}/log", query, _QUIET_S if excerpt.follow else _ANSWER_S) as raw:
            for line in raw:
                yield _stamped(line.decode(errors="replace").rstrip("\n"))


def _now(log: _Log, excerpt: Excerpt) -> Iterator[str]:
    try:
        lines = _cut(log.open(excerpt, excerpt.since), excerpt)
        yield from lines if excerpt.tail is None else deque(lines, maxlen=excerpt.tail)
    except (NotFound, InvalidSpec):  # there is no pod yet, or its container has not started
        return


def _cut(lines: Iterator[tuple[float | None, str]], excerpt: Excerpt) -> Iterator[str]:
    for at, line in lines:
        if excerpt.until is not None and at is not None and at > excerpt.until:
            return
        if excerpt.since is None or at is None or at >= excerpt.since:
            yield line


@dataclass(slots=True)
class _Place:
    """How far a log was read: the time of its newest line, and how many lines were of that time."""

    at: float | None = None
    lines: int = 0

    def unread(self, stamped: Iterator[tuple[float | None, str]]) -> Iterator[tuple[float | None, str]]:
        """Of lines that begin no later than here those that were not read yet, which are noted as read."""
        begin, again = self.at, self.lines
        for at, line in stamped:
            if begin is not None and at is not None and (at < begin or (at == begin and again > 0)):
                again -= at == begin
                continue
            if at is not None:
                self.lines = self.lines + 1 if at == self.at else 1
                self.at = at
            yield at, line


def _follow(log: _Log, excerpt: Excerpt) -> Iterator[str]:
    """The log from its beginning to the end of the attempt, however often the server breaks off."""
    place = _Place()
    over, patience = False, time.monotonic() + PATIENCE_S
    while True:
        begun = place.at is not None
        try:
            over = _is_over(log)  # asked first: what the pod wrote before its end is still read
            patience = time.monotonic() + PATIENCE_S
            told = Excerpt(until=excerpt.until, follow=not over) if begun else replace(excerpt, follow=not over)
            for at, line in place.unread(log.open(told, place.at if begun else excerpt.since)):
                if excerpt.until is not None and at is not None and at > excerpt.until:
                    return
                if excerpt.since is None or at is None or at >= excerpt.since:
                    yield line
        except (NotFound, InvalidSpec):  # there is no pod yet, or its container has not started
            pass
        except ClusterError as error:
            if error.reason in _FINAL or time.monotonic() > patience:
                raise
            over = False  # its end may not have been read
        if over or (excerpt.until is not None and time.time() > excerpt.until + _POLL_S):
            return
        time.sleep(_POLL_S)


def _is_over(log: _Log) -> bool:
    """Whether the pod will write no more: it has ended, or another attempt has begun, or the job is gone, its name
    being another's or nobody's."""
    try:
        job = _job(log.connection, log.replica)
    except NotFound:
        return True
    if job.metadata.uid != log.uid:
        return True
    if job.status.attempt != log.attempt:
        return job.status.attempt > log.attempt
    try:
        pod = log.connection.get(log.pod)
    except NotFound:
        return is_finished(job.status)
    return _has_ended(pod)


def _has_ended(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _job(connection: Connection, replica: Replica) -> TrainingJob:
    return read(TrainingJob, connection.get(paths.one("TrainingJob", replica.job, replica.namespace)))


def _check(job: TrainingJob, replica: Replica) -> None:
    replicas = {role.name: role.replicas for role in job.spec.roles}
    name = job.metadata.name
    if replica.role not in replicas:
        told = f"job {name!r} has no role {replica.role!r}; it has {', '.join(replicas)}"
        raise NotFound(told, field="role", reason="NoSuchRole")
    most = replicas[replica.role] - 1
    if not 0 <= replica.index <= most:
        told = f"role {replica.role!r} of job {name!r} has replicas 0 to {most}, no {replica.index}"
        raise NotFound(told, field="index", reason="NoSuchReplica")


def _stamped(line: str) -> tuple[float | None, str]:
    match = _STAMP.match(line)
    if match is None:
        return None, line
    at = unix(match[1] + match[3]) + float(match[2] or 0.0)
    return at, line[match.end() :]
