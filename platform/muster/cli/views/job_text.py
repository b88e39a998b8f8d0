"""Short texts about a job that several views share: phase, reason, pods, last log line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.api.spec import TrainingJob
from muster.lifecycle import has_terminated
from muster.lifecycle.conditions import explain_phase
from muster.text import format_duration, sanitize

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
_EXCEPTION = re.compile(r"\b(?!ChildFailedError)\w+(Error|Exception|Interrupt): ")
"""A line that names an exception other than torchrun's own, which does not name the cause."""
_ERROR_LINE = re.compile(r"\b\w*(Error|Exception|Interrupt)\b|\berror: ")
_TRACEBACK = "Traceback (most recent call last):"
_ROOT_CAUSE = "Root Cause (first observed failure):"
_RANK = re.compile(r"^rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_EXIT_CODE = re.compile(r"^exitcode\s*: (?P<code>-?\d+)")
_RANK_PREFIX = re.compile(r"^\[\w*?(?P<local>\d+)\]: ?")  # of a rank's line, with --tee
_LAUNCHER_OUTPUT = re.compile(
    r"^[IWE]\d{4} [\d:.]+ \d+ \S*torch/distributed/|^Setting OMP_NUM_THREADS environment variable"
)


def deleted_message(name: str, namespace: str, last: TrainingJob | None) -> str:
    """The error for a job that no longer exists, so that its end is unknown; `last` is its last observed state."""
    ttl = None if last is None else last.spec.ttl_seconds_after_finished
    if last is None or ttl is None or last.metadata.deletion_timestamp is not None:
        return f"job {namespace}/{name} was deleted before it ended"
    return (
        f"job {namespace}/{name} no longer exists and its result is unknown: it was deleted, or removed"
        f" {format_duration(ttl)} after its end (ttlSecondsAfterFinished: {ttl}; use at least 60)"
    )


def qualified_name(job: TrainingJob) -> str:
    """`namespace/name`."""
    return f"{job.metadata.namespace or 'default'}/{job.metadata.name}"


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


def phase_reason(job: TrainingJob) -> tuple[str, str]:
    """(code, message) that explains the phase; empty if none does. A cancelled job whose processes have not ended is
    Stopping."""
    reason, message = explain_phase(job.status)
    return reason, sanitize(message)


def no_output_reason(job: TrainingJob) -> str:
    """Why a job has no output, in a sentence."""
    phase, (code, message) = job.status.phase, phase_reason(job)
    name, queue = qualified_name(job), job.spec.queue
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


def last_log_line(job: TrainingJob) -> str:
    """The log line that best explains a failure; empty if nothing failed or nothing was written.

    In this order: the reason in the summary of Muster's launcher; the output of the rank that failed first if torchrun
    printed its summary; the last exception if the last line is a rule; the last line.
    """
    failure = job.status.last_failure
    lines = failure.log_tail.splitlines() if failure is not None else ()
    texts = [text for line in lines if (text := _clean_line(line))]
    last = _root_cause_line(texts) or (texts[-1] if texts else "")
    if last and not any(letter.isalnum() for letter in last):
        lines_with_text = [text for text in texts if any(letter.isalnum() for letter in text)]
        fallback = lines_with_text[-1] if lines_with_text else last
        last = next((text for text in reversed(lines_with_text) if _EXCEPTION.search(text)), fallback)
    summary = _LAUNCHER_SUMMARY.match(last)
    return summary["why"] if summary else last


def is_error_line(line: str) -> bool:
    """Whether a line of a log names an error, as those of Python and of argparse: it says more than an exit code."""
    return _ERROR_LINE.search(line) is not None


def truncate(text: str, max_chars: int) -> str:
    """The text, or its beginning and an ellipsis; at most `max_chars` characters."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 1].rstrip()}…"


def _clean_line(line: str) -> str:
    """A line as a terminal would show it, without colours and cursor movements."""
    return sanitize(line).replace("\t", " ").strip()


def pod_counts(job: TrainingJob) -> str:
    """Ready and requested pods, `2/4`; of a pending elastic job its range, `2-4`."""
    status = job.status
    most = sum(job.spec.max_replicas(role) for role in job.spec.roles)
    if status.pods_wanted and status.phase in ("Admitted", "Running"):
        return f"{status.pods_ready}/{max(most, status.pods_wanted)}"
    least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
    return str(most) if least == most else f"{least}-{most}"


def run_time_s(job: TrainingJob, now: float) -> float | None:
    """Seconds that all attempts ran so far; None before the first has started."""
    status = job.status
    if status.started_at is None:
        return float(status.ran_seconds) or None
    end = now if status.finished_at is None else status.finished_at
    return status.ran_seconds + max(0.0, end - status.started_at)


def _root_cause_line(lines: Sequence[str]) -> str | None:
    """The line that best explains why the first rank failed; without output of a rank, its exit code. None if the log
    does not end with torchrun's summary. `lines` must be stripped."""
    begin = _summary_start(lines)
    if begin is None:
        return None
    output, summary = [line for line in lines[:begin] if line and not _LAUNCHER_OUTPUT.match(line)], lines[begin:]
    cause = list(summary[summary.index(_ROOT_CAUSE) :]) if _ROOT_CAUSE in summary else []
    rank, code = _first_match(_RANK, cause), _first_match(_EXIT_CODE, cause)
    if rank is not None:
        own = [line for line in output if (found := _RANK_PREFIX.match(line)) and found["local"] == rank["local"]]
        output = own or output
    words = [text for line in output if any(map(str.isalnum, text := _RANK_PREFIX.sub("", line)))]
    exception = next((text for text in (*reversed(words), *cause) if _EXCEPTION.search(text)), None)
    if exception is not None or words:
        return exception if exception is not None else words[-1]
    return None if rank is None or code is None else f"rank {rank['rank']} exited with code {code['code']}"


def _summary_start(lines: Sequence[str]) -> int | None:
    """The index of the first line of torchrun's own output."""
    child = next((at for at, line in enumerate(lines) if "ChildFailedError" in line), None)
    if child is None:
        return 0 if _ROOT_CAUSE in lines else None  # the tail begins inside the summary
    before = lines[:child]
    if _TRACEBACK not in before:
        return 0 if any("torch/distributed/" in line for line in before) else child
    at = child - 1 - before[::-1].index(_TRACEBACK)
    return child if any(_EXCEPTION.search(line) for line in lines[at:child]) else at


def _first_match(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := pattern.match(line))), None)
