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
from muster.local.pod_folder import Ended, PodFolder, Vanished
from muster.local.records import PodRecord

PORT_TAKEN = "PortTaken"
"""The reason of a pod whose launcher found that another program had taken the port since it was chosen."""


CANNOT_START = "CannotStart"
"""The reason of a pod that could not be started for want of its own files, while the home takes others."""
_NOT_OF_THE_HOST = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
                              errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP})  # fmt: skip


def is_its_own(error: OSError, home: Home) -> bool:
    """Whether the files of one pod are what is wrong, so that waiting helps nobody: not a full disk or a host without
    processes to give, and nothing that other pods of the home would meet as well."""
    if error.errno not in _NOT_OF_THE_HOST:
        return False
    try:
        for folder in (home.path, home.runs, home.pods):
            if folder.exists():
                tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def cannot_start(pod: PodRecord, why: str, now: float) -> PodRecord:
    """Nothing of it has run, and nothing will."""
    return replace(pod, phase="Failed", reason=CANNOT_START, finished_at=now, log_tail=f"cannot be started: {why}\n")


def vanished(pod: PodRecord, state: Vanished, boot_id: str, now: float) -> PodRecord:
    """Its shim is gone without a word."""
    reason = "ShimKilled" if state.boot_id == boot_id else "Rebooted"
    return replace(pod, phase="Lost", reason=reason, finished_at=now)


def ended(pod: PodRecord, state: Ended, folder: PodFolder, log: Path) -> PodRecord:
    """Its shim has told how it ended."""
    after = replace(pod, exit_code=state.exit_code, finished_at=state.finished_at, failed_at=state.failed_at)
    if state.stopped:  # by us, yet not at the engine's wish: the host goes down
        return replace(after, phase="Lost", reason="HostDown")
    if state.exit_code == 0:
        return replace(after, phase="Succeeded", reason="Completed")
    if folder.port_was_taken():
        return replace(after, phase="Lost", reason=PORT_TAKEN)
    reason = "OOMKilled" if state.out_of_memory else "Error"
    return replace(after, phase="Failed", reason=reason, log_tail=tail(log))


def rank_failed(pod: PodRecord, folder: PodFolder, log: Path) -> PodRecord | None:
    """The record of a pod that still ends although a rank of it has failed; None when none has."""
    failure = folder.failure()
    if failure is None or folder.port_was_taken():
        return None
    code, at = failure
    return replace(pod, exit_code=code, failed_at=at, reason="Error", log_tail=tail(log))
