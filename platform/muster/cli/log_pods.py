"""Whose logs `muster logs` shows: which replicas, and of which attempt.

An elastic job that was shrunk, or suspended since, has logs of replicas that its newest attempt did not have. Lines of
several attempts side by side would tell of a run that there never was, so only those of the newest one are shown unless
replicas are named; the others are told of.
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
    """One pod whose log is shown; without an attempt: of the present one."""

    role: str
    index: int
    attempt: int | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def name_with_attempt(self) -> str:
        """As its log is called in the run folder."""
        return self.name if self.attempt is None else f"{self.name}.attempt-{self.attempt}"


def select_pods(job: TrainingJob, role: str | None, indexes: list[int] | None) -> list[PodAttempt]:
    """The pods of a role and of some indexes; without these, those that the job has at its present size."""
    roles = job.spec.roles
    if role is not None and role not in {item.name for item in roles}:
        usage_error(
            f"--role: {role!r} is no role of the job; write one of {', '.join(item.name for item in roles)}", "--role"
        )
    pods = [
        PodAttempt(item.name, index) for item in roles if role in (None, item.name) for index in range(item.replicas)
    ]
    chosen = [pod for pod in pods if pod.index in indexes] if indexes else _placed_pods(job, pods)
    if not chosen:
        told = ", ".join(map(str, indexes or ()))
        usage_error(f"--index: {told} is no index of the job; write 0 to {max(pod.index for pod in pods)}", "--index")
    return chosen


def _placed_pods(job: TrainingJob, pods: list[PodAttempt]) -> list[PodAttempt]:
    """Without those that an elastic job has not at its present size: their last logs are an earlier attempt's."""
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
    """Like `pods_of`, of an attempt that may have had roles and replicas that the job has no more: whoever names one of
    those gets its log if there is one, and is told by the cluster if there is none."""
    names = [role] if role is not None else [item.name for item in job.spec.roles]
    if indexes and min(indexes) >= 0 and len(names) == 1:
        return [PodAttempt(names[0], index, attempt) for index in sorted(set(indexes))]
    return [replace(pod, attempt=attempt) for pod in select_pods(job, role, indexes)]


def with_newest_log_attempt(pods: Iterable[PodAttempt], newest: Mapping[tuple[str, int], int]) -> list[PodAttempt]:
    """Each with the newest attempt that it has a log of, as far as that is known."""
    return [replace(pod, attempt=newest.get((pod.role, pod.index))) for pod in pods]


def split_by_newest_attempt(pods: Sequence[PodAttempt]) -> tuple[list[PodAttempt], list[PodAttempt]]:
    """The pods whose newest logs are of the newest attempt of all, and those whose newest are of earlier ones. Pods
    without a log count to neither, unless there is no log at all."""
    attempts = [pod.attempt for pod in pods if pod.attempt is not None]
    if not attempts:
        return list(pods), []
    newest = max(attempts)
    return [pod for pod in pods if pod.attempt == newest], [
        pod for pod in pods if pod.attempt in {*attempts} - {newest}
    ]


def omitted_logs_message(omitted: Sequence[PodAttempt], job: str) -> str:
    """Where to find what is not shown."""
    attempts = sorted({pod.attempt for pod in omitted if pod.attempt is not None})
    whose = ", ".join(pod.name for pod in omitted)
    whose = whose if len(omitted) <= _MAX_NAMED else pluralize(len(omitted), "other replica")
    when = f"attempt {attempts[0]}" if len(attempts) == 1 else f"attempts {', '.join(map(str, attempts))}"
    return f"the newest attempt only; {whose} wrote last in {when}: muster logs {job} --attempt {attempts[-1]}"
