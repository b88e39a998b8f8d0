"""The database's records of pods and events, and the record of a pod whose process has ended or failed to start.

A pod is Lost, not Failed, if another program, the host or its administrator ended it: its job is not at fault.
"""

from __future__ import annotations

import errno
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from muster.cluster import PodView
from muster.local.home import Home
from muster.local.pod_folder import PodFolder, ShimExited, ShimLost
from muster.local.run_folder import tail
from muster.model import Resources

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]
PORT_IN_USE = "PortInUse"
"""Reason of a pod whose launcher found its rendezvous port taken by another program."""
START_ERROR = "StartError"
"""Reason of a pod whose own files cannot be written although the home is writable."""
_POD_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
                              errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One replica, from the decision to run it until its resources are released. Times are Unix seconds.

    `devices` is None until its GPUs are chosen, before the shim starts. `deleting_at`: when the engine deleted it.
    `failed_at`: when its first rank failed. `request`: its requests at creation; a database written before this field
    existed is given it when it is opened.
    """

    name: str
    job_uid: str
    role: str
    index: int
    replicas: int
    attempt: int
    node: str
    flavor: str
    port: int
    gpus: int
    devices: tuple[str, ...] | None = None
    phase: PodPhase = "Pending"
    exit_code: int | None = None
    reason: str = ""
    finished_at: float | None = None
    log_tail: str = ""
    deleting_at: float | None = None
    grace_s: float = 30.0
    failed_at: float | None = None
    request: Resources = Resources()

    @property
    def finished(self) -> bool:
        """Whether all its processes have ended."""
        return self.phase in ("Succeeded", "Failed", "Lost")

    def to_view(self) -> PodView:
        """The engine's view; ready as soon as it runs, since probes are not supported on this host."""
        return PodView(
            name=self.name,
            job_uid=self.job_uid,
            role=self.role,
            index=self.index,
            attempt=self.attempt,
            node=self.node,
            phase=self.phase,
            ready=self.phase == "Running",
            deleting=self.deleting_at is not None,
            exit_code=self.exit_code,
            reason=self.reason,
            finished_at=self.finished_at,
            failed_at=self.failed_at,
            log_tail=self.log_tail,
            request=self.request,
        )


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event of a job that occurred `count` times in a row, last at `at`."""

    job_uid: str
    at: float
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {"at": self.at, "type": self.type, "reason": self.reason, "message": self.message, "count": self.count}


def is_pod_error(error: OSError, home: Home) -> bool:
    """Whether only the files of one pod are affected: not by a full disk or a lack of processes, which may pass, and
    not by an error that other pods of the home would have as well."""
    if error.errno not in _POD_ERRNOS:
        return False
    try:
        for folder in (home.path, home.runs_dir, home.pods_dir):
            if folder.exists():
                tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def record_start_error(pod: PodRecord, message: str, now: float) -> PodRecord:
    """The record of a pod that cannot be started and is not retried."""
    return replace(pod, phase="Failed", reason=START_ERROR, finished_at=now, log_tail=f"cannot be started: {message}\n")


def record_shim_lost(pod: PodRecord, state: ShimLost, boot_id: str, now: float) -> PodRecord:
    """The record of a pod whose shim ended without writing its exit file."""
    reason = "ShimKilled" if state.boot_id == boot_id else "Rebooted"
    return replace(pod, phase="Lost", reason=reason, finished_at=now)


def record_exit(pod: PodRecord, state: ShimExited, folder: PodFolder, log: Path) -> PodRecord:
    """The record of a pod whose shim has written its exit file."""
    after = replace(pod, exit_code=state.exit_code, finished_at=state.finished_at, failed_at=state.failed_at)
    if state.stopped:  # the engine did not delete it: the daemon is stopping all pods
        return replace(after, phase="Lost", reason="NodeShutdown")
    if state.exit_code == 0:
        return replace(after, phase="Succeeded", reason="Completed")
    if folder.port_in_use():
        return replace(after, phase="Lost", reason=PORT_IN_USE)
    reason = "OOMKilled" if state.out_of_memory else "Error"
    return replace(after, phase="Failed", reason=reason, log_tail=tail(log))


def record_rank_failure(pod: PodRecord, folder: PodFolder, log: Path) -> PodRecord | None:
    """The record of a pod that is still ending after one of its ranks failed; None if none failed."""
    failure = folder.first_rank_failure()
    if failure is None or folder.port_in_use():
        return None
    code, at = failure
    return replace(pod, exit_code=code, failed_at=at, reason="Error", log_tail=tail(log))
