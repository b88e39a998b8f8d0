"""A job in a few words: its phase and colour, why it waits, how far it is."""

from __future__ import annotations

import re

from muster.amounts import duration
from muster.cli.views.torchrun import EXCEPTION, telling
from muster.lifecycle import has_ended
from muster.spec import Condition, TrainingJob
from muster.terminal import plain

STYLES = {
    "Pending": "yellow",
    "Admitted": "cyan",
    "Running": "green",
    "Suspended": "magenta",
    "Terminating": "magenta",
    "Succeeded": "blue",
    "Failed": "red",
    "Cancelled": "magenta",
}
_OF_THE_LAUNCHER = re.compile(r"^muster: rank \d+ failed first, after [\d.]+ s: (?:.*; its last line: )?(?P<why>.+)$")
MARKS = {
    "Pending": "○",
    "Admitted": "◔",
    "Running": "●",
    "Suspended": "‖",
    "Terminating": "◌",
    "Succeeded": "✓",
    "Failed": "✗",
    "Cancelled": "⊘",
}


def vanished(name: str, namespace: str, last: TrainingJob | None) -> str:
    """Why nobody can tell how a job ended that is gone; `last` is how it was last seen."""
    ttl = None if last is None else last.spec.ttl_seconds_after_finished
    if last is None or ttl is None or last.metadata.deletion_timestamp is not None:
        return f"job {namespace}/{name} was deleted before it ended"
    return (
        f"job {namespace}/{name} is gone, and its end was not seen: it was deleted, or it ended and was removed"
        f" {duration(ttl)} later (ttlSecondsAfterFinished {ttl}; 60 leaves time to see it)"
    )


def label(job: TrainingJob) -> str:
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
    return has_ended(job.status)


def reason(job: TrainingJob) -> tuple[str, str]:
    """(code, sentence) that explains the phase best; empty when there is nothing to explain. A job whose processes are
    still stopping is not Cancelled yet."""
    if job.status.phase == "Terminating":
        cancelled = condition(job, "Cancelled")
        return "Stopping", plain(cancelled.message) if cancelled else ""
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
            return found.reason, plain(found.message)
    if job.status.phase == "Pending" and job.status.submitted_at is None:
        return "NotSeen", "nobody has looked at it yet; where that lasts, no operator acts on this cluster"
    return "", ""


def silence(job: TrainingJob) -> str:
    """Why there is nothing to read of a job, in a sentence."""
    phase, (code, message) = job.status.phase, reason(job)
    why = f"; {code}: {message}" if message else f"; {code}" if code and code != phase else ""
    if phase == "Pending":
        place = job.status.queue_position
        told = f", number {place} in queue {job.spec.queue}" if place else f" in queue {job.spec.queue}"
        return f"{label(job)} has no pods yet: it waits{told}{why}"
    if phase == "Suspended":
        return f"{label(job)} has no pods: it is suspended; let it go on with: muster resume {label(job)}"
    if phase == "Admitted":
        return f"{label(job)}: its pods are starting"
    if phase == "Running":
        return f"{label(job)} runs and has written nothing yet"
    if phase == "Terminating":
        return f"{label(job)} was cancelled and is stopping; it has written nothing"
    if job.status.started_at is None:
        return f"{label(job)} never started: {phase.lower()}{why}"
    return f"{label(job)} wrote nothing"


def last_words(job: TrainingJob) -> str:
    """The last line that the failed pod wrote; where our launcher tells which rank failed and why, that; where torchrun
    closed the log with its summary, what the rank said that failed first. Where a rule closes another summary, the last
    exception before it. Empty when nothing failed or nothing was written."""
    failure = job.status.last_failure
    lines = failure.log_tail.splitlines() if failure is not None else ()
    texts = [text for line in lines if (text := _printable(line))]
    last = telling(texts) or (texts[-1] if texts else "")
    if last and not any(letter.isalnum() for letter in last):
        said = [text for text in texts if any(letter.isalnum() for letter in text)]
        last = next((text for text in reversed(said) if EXCEPTION.search(text)), said[-1] if said else last)
    told = _OF_THE_LAUNCHER.match(last)
    return told["why"] if told else last


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis; at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _printable(line: str) -> str:
    """A line as a terminal ends up showing it, without colours and what moves its cursor."""
    return plain(line).replace("\t", " ").strip()


def pods(job: TrainingJob) -> str:
    """Ready of wanted: `2/4`, of an elastic job that has room for fewer, too; while that waits, `2-4`."""
    status = job.status
    most = sum(job.spec.most_replicas(role) for role in job.spec.roles)
    if status.pods_wanted and status.phase in ("Admitted", "Running"):
        return f"{status.pods_ready}/{max(most, status.pods_wanted)}"
    least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
    return str(most) if least == most else f"{least}-{most}"


def ran_for(job: TrainingJob, now: float) -> float | None:
    """Seconds that its attempts ran, together and so far; None before the first has started."""
    status = job.status
    if status.started_at is None:
        return float(status.ran_seconds) or None
    end = now if status.finished_at is None else status.finished_at
    return status.ran_seconds + max(0.0, end - status.started_at)
