"""Which replicas and which attempt `muster logs` shows.

After an elastic job shrank, some replicas have logs of earlier attempts only. Lines of different attempts must not be
merged: unless replicas are named, only the newest attempt is shown, and a note says which replicas were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from muster.cli.exit_codes import usage_error
from muster.text.humanize import pluralize

if TYPE_CHECKING:
    from muster.spec import TrainingJob

_MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class PodAttempt:
    """One pod whose log is shown; attempt None is the current one."""

    role: str
    index: int
    attempt: int | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def name_with_attempt(self) -> str:
        """The name of its log in the run folder."""
        return self.name if self.attempt is None else f"{self.name}.attempt-{self.attempt}"


def select_pods(job: TrainingJob, role: str | None, indexes: list[int] | None) -> list[PodAttempt]:
    """The pods of a role and of the given indexes; by default those of the job at its current size."""
    roles = job.spec.roles
    if role is not None and role not in {item.name for item in roles}:
        usage_error(
            f"--role: must be one of the job's roles ({', '.join(item.name for item in roles)}); got {role!r}", "--role"
        )
    pods = [
        PodAttempt(item.name, index) for item in roles if role in (None, item.name) for index in range(item.replicas)
    ]
    chosen = [pod for pod in pods if pod.index in indexes] if indexes else _placed_pods(job, pods)
    if not chosen:
        given = ", ".join(map(str, indexes or ()))
        usage_error(f"--index: must be 0 to {max(pod.index for pod in pods)} for this job; got {given}", "--index")
    return chosen


def _placed_pods(job: TrainingJob, pods: list[PodAttempt]) -> list[PodAttempt]:
    """The pods in the current placement: other replicas of an elastic job have logs of earlier attempts only."""
    from muster.lifecycle.placement import index_range

    placed = {
        PodAttempt(part.role, index)
        for part in job.status.placement
        for share in part.nodes
        for index in index_range(share.indexes)
    }
    return [pod for pod in pods if pod in placed] or pods


def select_pods_of_attempt(
    job: TrainingJob, role: str | None, indexes: list[int] | None, attempt: int
) -> list[PodAttempt]:
    """Like `select_pods`, for a given attempt. The attempt may have had roles and replicas that the job no longer has:
    named ones are not checked here, the cluster raises `NotFound` if they have no log."""
    names = [role] if role is not None else [item.name for item in job.spec.roles]
    if indexes and min(indexes) >= 0 and len(names) == 1:
        return [PodAttempt(names[0], index, attempt) for index in sorted(set(indexes))]
    return [replace(pod, attempt=attempt) for pod in select_pods(job, role, indexes)]


def with_newest_log_attempt(pods: Iterable[PodAttempt], newest: Mapping[tuple[str, int], int]) -> list[PodAttempt]:
    """The pods, each with the newest attempt of which it has a log; None if unknown."""
    return [replace(pod, attempt=newest.get((pod.role, pod.index))) for pod in pods]


def split_by_newest_attempt(pods: Sequence[PodAttempt]) -> tuple[list[PodAttempt], list[PodAttempt]]:
    """(pods with a log of the newest attempt of all, pods whose newest log is of an earlier attempt). Pods without a
    log are in neither, unless no pod has a log."""
    attempts = [pod.attempt for pod in pods if pod.attempt is not None]
    if not attempts:
        return list(pods), []
    newest = max(attempts)
    return [pod for pod in pods if pod.attempt == newest], [
        pod for pod in pods if pod.attempt in {*attempts} - {newest}
    ]


def omitted_logs_message(omitted: Sequence[PodAttempt], job: str) -> str:
    """The note about the replicas that are not shown, with the command that shows them."""
    attempts = sorted({pod.attempt for pod in omitted if pod.attempt is not None})
    names = ", ".join(pod.name for pod in omitted)
    names = names if len(omitted) <= _MAX_NAMED else pluralize(len(omitted), "other replica")
    last = f"attempt {attempts[0]}" if len(attempts) == 1 else f"attempts {', '.join(map(str, attempts))}"
    return f"showing the newest attempt only; last logs of {names}: {last}: muster logs {job} --attempt {attempts[-1]}"
