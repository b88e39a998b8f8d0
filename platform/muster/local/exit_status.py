"""What the record of a pod says once no process of it is left, or once a rank of it has failed.

Lost is not failed: what another program, the host or its operator did to a replica is not its job's fault.
"""

from __future__ import annotations

import errno
import tempfile
from dataclasses import replace
from pathlib import Path

from muster.local.home import Home
from muster.local.logs import tail
from muster.local.pod_folder import PodFolder, ShimExited, ShimLost
from muster.local.records import PodRecord

PORT_IN_USE = "PortInUse"
"""The reason of a pod whose launcher found that another program had taken the port since it was chosen."""


START_ERROR = "StartError"
"""The reason of a pod that could not be started for want of its own files, while the home takes others."""
_POD_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
                              errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})  # fmt: skip


def is_pod_error(error: OSError, home: Home) -> bool:
    """Whether the files of one pod are what is wrong, so that waiting helps nobody: not a full disk or a host without
    processes to give, and nothing that other pods of the home would meet as well."""
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
    """Nothing of it has run, and nothing will."""
    return replace(pod, phase="Failed", reason=START_ERROR, finished_at=now, log_tail=f"cannot be started: {message}\n")


def record_shim_lost(pod: PodRecord, state: ShimLost, boot_id: str, now: float) -> PodRecord:
    """Its shim is gone without a word."""
    reason = "ShimKilled" if state.boot_id == boot_id else "Rebooted"
    return replace(pod, phase="Lost", reason=reason, finished_at=now)


def record_exit(pod: PodRecord, state: ShimExited, folder: PodFolder, log: Path) -> PodRecord:
    """Its shim has told how it ended."""
    after = replace(pod, exit_code=state.exit_code, finished_at=state.finished_at, failed_at=state.failed_at)
    if state.stopped:  # by us, yet not at the engine's wish: the host goes down
        return replace(after, phase="Lost", reason="NodeShutdown")
    if state.exit_code == 0:
        return replace(after, phase="Succeeded", reason="Completed")
    if folder.port_in_use():
        return replace(after, phase="Lost", reason=PORT_IN_USE)
    reason = "OOMKilled" if state.out_of_memory else "Error"
    return replace(after, phase="Failed", reason=reason, log_tail=tail(log))


def record_rank_failure(pod: PodRecord, folder: PodFolder, log: Path) -> PodRecord | None:
    """The record of a pod that still ends although a rank of it has failed; None when none has."""
    failure = folder.first_rank_failure()
    if failure is None or folder.port_in_use():
        return None
    code, at = failure
    return replace(pod, exit_code=code, failed_at=at, reason="Error", log_tail=tail(log))
