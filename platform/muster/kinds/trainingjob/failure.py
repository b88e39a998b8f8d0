"""The cause of a failed attempt, and what follows from it.

The cause is the gang's earliest failing container: the others fail because of it. Node loss, eviction and resize are
never failures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from muster.api.spec import FailurePolicy, LastFailure, TrainingJob
from muster.cluster import PodView
from muster.kinds.trainingjob.failure_cause import failure_cause
from muster.kinds.trainingjob.pods import pod_name
from muster.workload.timeouts import Timeouts

STALL = "Stalled"
"""Reason of the failure of a job that made no step for too long."""
MAX_SIGNAL = 64
"""As Linux numbers them."""
FailureAction = Literal["RestartGang", "RestartElsewhere", "FailJob"]

_INFRASTRUCTURE_REASONS = frozenset({"Preempting", "Shutdown", "Terminated", "NodeShutdown", "NodeAffinity",
                                 "UnexpectedAdmissionError", "DisruptionTarget"})  # fmt: skip


def first_failed_pod(pods: Iterable[PodView]) -> PodView | None:
    """The pod that failed earliest; None if none has. A pod of which one rank has failed while other ranks still end
    counts as well: it may have caused failures of pods that end before it."""
    pods = tuple(pods)
    if all(pod.phase != "Failed" for pod in pods):
        return None
    failed = [pod for pod in pods if pod.phase == "Failed" or (pod.phase == "Running" and pod.failed_at is not None)]
    late = float("inf")
    return min(failed, key=lambda pod: (late if (at := _failed_at(pod)) is None else at, pod.name))


def _failed_at(pod: PodView) -> float | None:
    return pod.finished_at if pod.failed_at is None else pod.failed_at


def is_infrastructure_failure(pod: PodView) -> bool:
    """Whether the kubelet or an unmanaged pod ended it, not the job: it counts as a lost pod."""
    return pod.reason in _INFRASTRUCTURE_REASONS or pod.reason.startswith("OutOf")


def matching_action(policy: FailurePolicy, pod: PodView) -> FailureAction | None:
    """The action of the first rule that matches the exit code or the pod's reason; None if none does."""
    for rule in policy.rules:
        if pod.exit_code is not None and pod.exit_code in rule.on_exit_codes:
            return rule.action
        if pod.reason and pod.reason in rule.on_pod_conditions:
            return rule.action
    return None


def has_stalled(job: TrainingJob, attempt: int) -> bool:
    """Whether the job's last failure is a stall of this attempt."""
    failure, meta = job.status.last_failure, job.metadata
    names = (pod_name(meta.name, meta.uid, role.name, 0, attempt) for role in job.spec.roles)
    return failure is not None and failure.reason == STALL and failure.pod in names


def to_last_failure(pod: PodView, now: float, timeouts: Timeouts) -> LastFailure:
    """What is kept of a failed pod before it is deleted."""
    tail = pod.log_tail.encode()[-timeouts.log_tail_bytes :].decode(errors="ignore")
    at = now if (known := _failed_at(pod)) is None else known
    return LastFailure(
        pod=pod.name, node=pod.node, exit_code=pod.exit_code, reason=pod.reason or "Failed", log_tail=tail, at=at
    )


def failure_message(pod: PodView, failure: LastFailure) -> str:
    """ "rank 1: ValueError: no data in train.py:12 (pod x-trainer-0-1a2b3 on n1, exit code 1)", or, if its log names no
    error, "pod x-trainer-0-1a2b3 on n1 exited with code 42 (Error)"."""
    cause = failure_cause(failure)
    if cause:
        code = "" if pod.exit_code is None else f", exit code {pod.exit_code}"
        return f"{cause} (pod {pod.name} on {pod.node}{code})"
    ended = f"exited with code {pod.exit_code}" if pod.exit_code is not None else "failed"
    return f"pod {pod.name} on {pod.node} {ended}" + (f" ({pod.reason})" if pod.reason else "")


def is_signal(exit_code: int | None) -> bool:
    """Whether a signal ended the container, by its exit code of 128 + signal. Its program did not decide to end, so a
    first restart need not wait."""
    return exit_code is not None and 128 < exit_code <= 128 + MAX_SIGNAL
