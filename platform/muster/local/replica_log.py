"""Selects the log of a replica and attempt, and whether it is complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from muster.errors import NotFound
from muster.spec import TERMINAL_PHASES, TrainingJob

_FINISHED_JOB_PHASES = ("Terminating", *TERMINAL_PHASES)
_FINISHED_POD_PHASES = ("Succeeded", "Failed", "Lost")


def check_replica(job: TrainingJob, role: str, index: int, logs: Path, attempt: int | None) -> None:
    """Raises `NotFound` for a role or index that the job does not have.

    One that was removed since can still be read, if the folder `logs` has its log of the given `attempt`.
    """
    if attempt is not None and f"{role}-{index}.attempt-{attempt}.log" in {path.name for path in logs.glob("*.log")}:
        return
    replicas = {entry.name: entry.replicas for entry in job.spec.roles}
    if role not in replicas:
        raise NotFound(
            f"job {job.metadata.name!r} has no role {role!r}; it has {', '.join(replicas)}",
            field="role",
            reason="RoleNotFound",
        )
    if not 0 <= index < replicas[role]:
        raise NotFound(
            f"index: must be 0 to {replicas[role] - 1} for role {role!r} of job {job.metadata.name!r}; got {index}",
            field="index",
            reason="ReplicaNotFound",
        )


def check_attempt(job: TrainingJob, attempt: int) -> None:
    """Raises `NotFound` for an attempt that has not begun."""
    newest = job.status.attempt
    if attempt > newest:
        valid = "0" if newest == 0 else f"0 to {newest}"
        message = f"attempt: must be {valid} for job {job.metadata.name!r}; got {attempt}"
        raise NotFound(message, field="attempt", reason="AttemptNotFound")


def newest_attempt(run_dir: Path, job: TrainingJob, role: str, index: int, follow: bool) -> int:
    """The newest attempt that has a log. With `follow`, of an unfinished job the current attempt even without a log."""
    attempts = [
        int(path.name.rpartition("attempt-")[2].removesuffix(".log"))
        for path in (run_dir / "logs").glob(f"{role}-{index}.attempt-*.log")
    ]
    if follow and job.status.phase not in _FINISHED_JOB_PHASES:
        return max([job.status.attempt, *attempts])
    return max(attempts, default=job.status.attempt)


def newest_log_attempts(logs: Path) -> dict[tuple[str, int], int]:
    """By (role, index): the newest attempt whose log is in this folder."""
    newest: dict[tuple[str, int], int] = {}
    for path in logs.glob("*.attempt-*.log"):
        pod, _, attempt = path.name.removesuffix(".log").rpartition(".attempt-")
        role, _, index = pod.rpartition("-")
        if index.isdigit() and attempt.isdigit():
            newest[role, int(index)] = max(int(attempt), newest.get((role, int(index)), 0))
    return newest


def is_complete(job: TrainingJob, pods: Iterable[Mapping[str, Any]], attempt: int) -> bool:
    """Whether an attempt's log is complete; `pods` are the replica's pods of that attempt from the daemon's API."""
    if job.status.attempt < attempt:
        return False
    ended = [pod["phase"] in _FINISHED_POD_PHASES for pod in pods]
    if job.status.attempt > attempt or job.status.phase in _FINISHED_JOB_PHASES:
        return all(ended)
    return bool(ended) and ended[0]
