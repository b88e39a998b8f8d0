"""A job in a few words: its phase and colour, why it waits, how far it is."""

from __future__ import annotations

import re

from muster.cli.views.torchrun_log import EXCEPTION, root_cause_line
from muster.lifecycle import has_terminated
from muster.spec import Condition, TrainingJob
from muster.text.humanize import format_duration
from muster.text.sanitize import sanitize

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
_LAUNCHER_SUMMARY = re.compile(r"^muster: rank \d+ failed first, after [\d.]+ s: (?:.*; its last line: )?(?P<why>.+)$")
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
    """Why nobody can tell how a job ended that is gone; `last` is how it was last seen."""
    ttl = None if last is None else last.spec.ttl_seconds_after_finished
    if last is None or ttl is None or last.metadata.deletion_timestamp is not None:
        return f"job {namespace}/{name} was deleted before it ended"
    return (
        f"job {namespace}/{name} is gone, and its end was not seen: it was deleted, or it ended and was removed"
        f" {format_duration(ttl)} later (ttlSecondsAfterFinished {ttl}; 60 leaves time to see it)"
    )


def qualified_name(job: TrainingJob) -> str:
    """`namespace/name`."""
    return f"{job.metadata.namespace or 'default'}/{job.metadata.name}"


def priority(job: TrainingJob) -> str:
    """The priority that counts; `-` as long as the value of its PriorityClass is not known."""
    if job.spec.priority_class_name is None:
        return str(job.spec.priority)
    return "-" if job.status.priority is None else str(job.status.priority)


def condition(job: TrainingJob, kind: str) -> Condition | None:
    """The condition of that type; None when there is none."""
    return next((item for item in job.status.conditions if item.type == kind), None)


def is_over(job: TrainingJob) -> bool:
    """True once the job is finished and its last process has ended: nothing will change any more."""
    return has_terminated(job.status)


def phase_reason(job: TrainingJob) -> tuple[str, str]:
    """(code, sentence) that explains the phase best; empty when there is nothing to explain. A job whose processes are
    still stopping is not Cancelled yet."""
    if job.status.phase == "Terminating":
        cancelled = condition(job, "Cancelled")
        return "Stopping", sanitize(cancelled.message) if cancelled else ""
    wanted = {
        "Failed": ("Failed",),
        "Cancelled": ("Cancelled",),
        "Suspended": ("Suspended",),
        "Succeeded": ("Complete",),
        "Running": ("PodsReady",),
    }.get(job.status.phase, ("Admitted", "Evicted"))
    for kind in wanted:
        found = condition(job, kind)
        if found is not None and (found.message or found.reason):
            return found.reason, sanitize(found.message)
    if job.status.phase == "Pending" and job.status.submitted_at is None:
        return "NotReconciled", "nobody has looked at it yet; where that lasts, no operator acts on this cluster"
    return "", ""


def no_output_reason(job: TrainingJob) -> str:
    """Why there is nothing to read of a job, in a sentence."""
    phase, (code, message) = job.status.phase, phase_reason(job)
    why = f"; {code}: {message}" if message else f"; {code}" if code and code != phase else ""
    if phase == "Pending":
        place = job.status.queue_position
        told = f", number {place} in queue {job.spec.queue}" if place else f" in queue {job.spec.queue}"
        return f"{qualified_name(job)} has no pods yet: it waits{told}{why}"
    if phase == "Suspended":
        return (
            f"{qualified_name(job)} has no pods: it is suspended; let it go on with: muster resume "
            f"{qualified_name(job)}"
        )
    if phase == "Admitted":
        return f"{qualified_name(job)}: its pods are starting"
    if phase == "Running":
        return f"{qualified_name(job)} runs and has written nothing yet"
    if phase == "Terminating":
        return f"{qualified_name(job)} was cancelled and is stopping; it has written nothing"
    if job.status.started_at is None:
        return f"{qualified_name(job)} never started: {phase.lower()}{why}"
    return f"{qualified_name(job)} wrote nothing"


def last_log_line(job: TrainingJob) -> str:
    """The last line that the failed pod wrote; where our launcher tells which rank failed and why, that; where torchrun
    closed the log with its summary, what the rank said that failed first. Where a rule closes another summary, the last
    exception before it. Empty when nothing failed or nothing was written."""
    failure = job.status.last_failure
    lines = failure.log_tail.splitlines() if failure is not None else ()
    texts = [text for line in lines if (text := _clean_line(line))]
    last = root_cause_line(texts) or (texts[-1] if texts else "")
    if last and not any(letter.isalnum() for letter in last):
        said = [text for text in texts if any(letter.isalnum() for letter in text)]
        last = next((text for text in reversed(said) if EXCEPTION.search(text)), said[-1] if said else last)
    told = _LAUNCHER_SUMMARY.match(last)
    return told["why"] if told else last


def truncate(text: str, max_chars: int) -> str:
    """The text, or its beginning and an ellipsis; at most `most` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def _clean_line(line: str) -> str:
    """A line as a terminal ends up showing it, without colours and what moves its cursor."""
    return sanitize(line).replace("\t", " ").strip()


def pod_counts(job: TrainingJob) -> str:
    """Ready of wanted: `2/4`, of an elastic job that has room for fewer, too; while that waits, `2-4`."""
    status = job.status
    most = sum(job.spec.max_replicas(role) for role in job.spec.roles)
    if status.pods_wanted and status.phase in ("Admitted", "Running"):
        return f"{status.pods_ready}/{max(most, status.pods_wanted)}"
    least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
    return str(most) if least == most else f"{least}-{most}"


def run_time_s(job: TrainingJob, now: float) -> float | None:
    """Seconds that its attempts ran, together and so far; None before the first has started."""
    status = job.status
    if status.started_at is None:
        return float(status.ran_seconds) or None
    end = now if status.finished_at is None else status.finished_at
    return status.ran_seconds + max(0.0, end - status.started_at)
