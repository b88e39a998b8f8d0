"""Short texts about a job that several views share: phase, reason, pods, last log line."""

from __future__ import annotations

from muster.api.spec import ObjectMeta, QueueingStatus, TrainingJob, TrainingJobStatus
from muster.kinds.trainingjob.failure_cause import failure_cause, what_to_try
from muster.text import format_duration, sanitize
from muster.workload.conditions import explain_phase, has_terminated

PHASE_STYLES = {
    "Pending": "yellow",
    "Admitted": "cyan",
    "Running": "green",
    "Suspended": "magenta",
    "Terminating": "magenta",
    "Succeeded": "blue",
    "Failed": "red",
    "Cancelled": "magenta",
}
PHASE_SYMBOLS = {
    "Pending": "○",
    "Admitted": "◔",
    "Running": "●",
    "Suspended": "‖",
    "Terminating": "◌",
    "Succeeded": "✓",
    "Failed": "✗",
    "Cancelled": "⊘",
}


def deleted_message(name: str, namespace: str, last: TrainingJob | None) -> str:
    """The error for a job that no longer exists, so that its end is unknown; `last` is its last observed state."""
    ttl = None if last is None else last.spec.ttl_seconds_after_finished
    if last is None or ttl is None or last.metadata.deletion_timestamp is not None:
        return f"job {namespace}/{name} was deleted before it ended"
    return (
        f"job {namespace}/{name} no longer exists and its result is unknown: it was deleted, or removed"
        f" {format_duration(ttl)} after its end (ttlSecondsAfterFinished: {ttl}; use at least 60)"
    )


def qualified_name(metadata: ObjectMeta) -> str:
    """`namespace/name`."""
    return f"{metadata.namespace or 'default'}/{metadata.name}"


def command_argument(job: TrainingJob) -> str:
    """The job as an argument of a command: with the namespace only if it is not `default`."""
    namespace = job.metadata.namespace or "default"
    return job.metadata.name if namespace == "default" else f"{namespace}/{job.metadata.name}"


def priority(job: TrainingJob) -> str:
    """The effective priority; `-` while the value of its PriorityClass is unknown."""
    if job.spec.priority_class_name is None:
        return str(job.spec.priority)
    return "-" if job.status.priority is None else str(job.status.priority)


def is_over(job: TrainingJob) -> bool:
    """Whether the job is finished and its last process has ended."""
    return has_terminated(job.status)


def phase_reason(status: QueueingStatus) -> tuple[str, str]:
    """(code, message) that explains the phase; empty if none does. A cancelled job whose processes have not ended is
    Stopping."""
    reason, message = explain_phase(status)
    return reason, sanitize(message)


def reason_sentence(status: QueueingStatus) -> str:
    """Why a job is in its phase. Of a failed one the cause comes before the policy that ended it, and the code last."""
    code, message = phase_reason(status)
    if status.phase != "Failed":
        return f"{code}: {message}" if code and message else code or message
    cause = failure_cause(status.last_failure) if isinstance(status, TrainingJobStatus) else ""
    text = "; ".join(filter(None, ("" if cause in message else cause, message)))
    return f"{text} ({code})" if text and code else text or code


def what_to_try_next(status: QueueingStatus) -> str:
    """What to try after a failure for lack of memory; empty otherwise."""
    failed = isinstance(status, TrainingJobStatus) and status.phase == "Failed"
    return what_to_try(status.last_failure) if failed and isinstance(status, TrainingJobStatus) else ""


def no_output_reason(job: TrainingJob) -> str:
    """Why a job has no output, in a sentence."""
    phase, (code, message) = job.status.phase, phase_reason(job.status)
    name, queue = qualified_name(job.metadata), job.spec.queue
    reason = f"; {code}: {message}" if message else f"; {code}" if code and code != phase else ""
    if phase == "Pending":
        position = job.status.queue_position
        return f"{name} has no pods yet: {f'number {position}' if position else 'pending'} in queue {queue}{reason}"
    if phase == "Suspended":
        return f"{name} has no pods: it is suspended; to resume it: muster resume {name}"
    if phase == "Admitted":
        return f"{name}: its pods are starting"
    if phase == "Running":
        return f"{name} is running and has written no output yet"
    if phase == "Terminating":
        return f"{name} was cancelled and is stopping; it has written no output"
    if job.status.started_at is None:
        return f"{name} never started: {phase.lower()}{reason}"
    return f"{name} wrote no output"


def truncate(text: str, max_chars: int) -> str:
    """The text, or its beginning and an ellipsis; at most `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def gang_count(job: TrainingJob) -> int:
    """1, or how many indices of an array have nodes; before any has, how many may have at a time."""
    array, found = job.spec.array, job.status.array
    if array is None or "/" in job.metadata.uid:
        return 1
    running = 0 if found is None else sum("placement" in one for one in found.active.values())
    return running if running or found is not None else min(array.parallelism, array.index_count)


def array_summary(job: TrainingJob) -> str:
    """How far an array is, and why those of its indices wait that do: "37 of 100 succeeded, 3 failed, 10 running"."""
    from muster.kinds.trainingjob.arrays import summary

    wait = f"; {reason_sentence(job.status)}" if job.status.phase == "Pending" else ""
    return summary(job) + wait
