"""A job in a few words: its phase and colour, why it waits, how far it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from muster.cli.views.amounts import count, duration
from muster.spec import Condition, TrainingJob

STYLES = {
    "Pending": "yellow",
    "Admitted": "cyan",
    "Running": "green",
    "Suspended": "magenta",
    "Succeeded": "blue",
    "Failed": "red",
}
_PREPARING = {"setup": "setting up", "compile": "compiling"}
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_OF_THE_LAUNCHER = re.compile(r"^muster: rank \d+ failed first, after [\d.]+ s: (?:.*; its last line: )?(?P<why>.+)$")
MARKS = {"Pending": "○", "Admitted": "◔", "Running": "●", "Suspended": "‖", "Succeeded": "✓", "Failed": "✗"}


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


def condition(job: TrainingJob, kind: str) -> Condition | None:
    """The condition of that type; None when there is none."""
    return next((item for item in job.status.conditions if item.type == kind), None)


def is_over(job: TrainingJob) -> bool:
    """Nothing will change any more."""
    return job.status.phase in ("Succeeded", "Failed")


def reason(job: TrainingJob) -> tuple[str, str]:
    """(code, sentence) that explains the phase best; empty when there is nothing to explain."""
    wanted = {
        "Failed": ("Failed",),
        "Suspended": ("Suspended",),
        "Succeeded": ("Complete",),
        "Running": ("PodsReady",),
    }.get(job.status.phase, ("Admitted", "Evicted"))
    for kind in wanted:
        found = condition(job, kind)
        if found is not None and (found.message or found.reason):
            return found.reason, found.message
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
    if job.status.started_at is None:
        return f"{label(job)} never started: {phase.lower()}{why}"
    return f"{label(job)} wrote nothing"


_EXCEPTION = re.compile(r"\b(?!ChildFailedError)\w+(Error|Exception|Interrupt): ")  # torchrun's own says nothing


def last_words(job: TrainingJob) -> str:
    """The last line that the failed pod wrote; where our launcher tells which rank failed and why, that. Where a rule
    closes a summary, as torchrun's, the last exception before it. Empty when nothing failed or nothing was written."""
    failure = job.status.last_failure
    lines = failure.log_tail.splitlines() if failure is not None else ()
    texts = [text for line in lines if (text := _printable(line))]
    last = texts[-1] if texts else ""
    if last and not any(letter.isalnum() for letter in last):
        said = [text for text in texts if any(letter.isalnum() for letter in text)]
        last = next((text for text in reversed(said) if _EXCEPTION.search(text)), said[-1] if said else last)
    told = _OF_THE_LAUNCHER.match(last)
    return told["why"] if told else last


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and an ellipsis; at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _printable(line: str) -> str:
    """A line as a terminal ends up showing it, without colours and what moves its cursor."""
    shown = _ESCAPE.sub("", line.rstrip("\r").rpartition("\r")[2])
    return "".join(char for char in shown if char.isprintable()).strip()


def pods(job: TrainingJob) -> str:
    """Ready of wanted: `2/4`; for an elastic job that waits, `2-4`."""
    status = job.status
    if status.pods_wanted and status.phase in ("Admitted", "Running"):
        return f"{status.pods_ready}/{status.pods_wanted}"
    most = sum(role.replicas for role in job.spec.roles)
    least = sum(role.min_replicas or role.replicas for role in job.spec.roles)
    return str(most) if least == most else f"{least}-{most}"


def ran_for(job: TrainingJob, now: float) -> float | None:
    """Seconds since its start, or from start to end; None before it has started."""
    if job.status.started_at is None:
        return None
    end = job.status.finished_at
    if end is None and job.status.phase not in ("Running", "Admitted"):
        return None
    return (now if end is None else end) - job.status.started_at


def leading(beats: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The beat of the lowest rank of the newest attempt: it speaks for the job."""
    if not beats:
        return None
    newest = max(beat.get("attempt") or 0 for beat in beats)
    return min((beat for beat in beats if (beat.get("attempt") or 0) == newest), key=lambda beat: beat.get("rank") or 0)


def present(beats: list[dict[str, Any]], job: TrainingJob) -> dict[str, Any] | None:
    """The beat that speaks for the attempt at hand: what an earlier one said last is no progress of this one."""
    beat = leading(beats)
    return beat if beat is None or (beat.get("attempt") or 0) >= job.status.attempt else None


def preparing(beat: Mapping[str, Any], now: float) -> str:
    """What a rank does before its first step, and for how long; empty once it has made one."""
    if beat.get("loss") is not None or beat.get("phase") not in _PREPARING:
        return ""
    since = f" for {duration(now - beat['at'])}" if isinstance(beat.get("at"), int | float) else ""
    hint = "; the first time this can take a minute or more" if beat["phase"] == "compile" else ""
    return f"{_PREPARING[beat['phase']]}{since}{hint}"


def progress(beat: Mapping[str, Any]) -> str:
    """`step 40/60  loss 2.31  12.3k tokens/s  MFU 41.2%  ETA 1m10s`; what is unknown is left out."""
    parts = []
    if beat.get("step") is not None:
        parts.append(f"step {beat['step']}" + (f"/{beat['steps']}" if beat.get("steps") else ""))
    if beat.get("phase") in ("setup", "compile", "checkpoint"):
        parts.append(str(beat["phase"]))
    if beat.get("loss") is not None:
        parts.append(f"loss {beat['loss']:.4g}")
    if beat.get("tokens_per_s"):
        parts.append(f"{count(beat['tokens_per_s'])} tokens/s")
    if beat.get("mfu"):
        parts.append(f"MFU {beat['mfu'] * 100:.1f}%")
    left = eta_s(beat)
    if left is not None:
        parts.append(f"ETA {duration(left)}")
    return "  ".join(parts)


def eta_s(beat: Mapping[str, Any]) -> float | None:
    """Seconds to the last step, as the job says or by its step time; None when it is done or cannot be known."""
    step, steps = beat.get("step") or 0, beat.get("steps")
    if beat.get("phase") == "done" or (steps and step >= steps):
        return None
    if beat.get("eta_s") is not None:
        return float(beat["eta_s"])
    if steps and step and beat.get("step_time_s"):
        return float((steps - step) * beat["step_time_s"])
    return None
