"""The output of `muster watch`: the queue position of a pending job, progress and loss of a running one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from muster.api.spec import TERMINAL_PHASES, LastFailure, TrainingJob
from muster.cli.views import job_text
from muster.heartbeats.progress import eta_s, startup_message
from muster.kinds.trainingjob.failure_cause import failure_cause
from muster.text import format_bytes, format_count, format_duration, format_time, pluralize, sanitize
from muster.text_layout import wrap_parts
from muster.visibility.columns import run_time_s

_SPARKLINE_BLOCKS = "▁▂▃▄▅▆▇█"
_SPINNER_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, slots=True)
class WatchFrame:
    """The job and its leading rank's heartbeat, if any, at time `now`."""

    job: TrainingJob
    heartbeat: Mapping[str, Any] | None
    now: float


@dataclass(frozen=True, slots=True)
class LossCurve:
    """Observed losses as (step, loss)."""

    losses: tuple[tuple[int, float], ...] = ()

    def with_heartbeat(self, heartbeat: Mapping[str, Any] | None) -> LossCurve:
        """The curve with the heartbeat's loss; after a resume from an earlier step, later losses are dropped."""
        if heartbeat is None or heartbeat.get("loss") is None or heartbeat.get("step") is None:
            return self
        step = int(heartbeat["step"])
        if self.losses and self.losses[-1] == (step, heartbeat["loss"]):
            return self
        return LossCurve((*(point for point in self.losses if point[0] < step), (step, float(heartbeat["loss"]))))

    def sparkline(self, width: int) -> str:
        """At most `width` blocks, high for a high loss."""
        if len(self.losses) < 2:
            return ""
        values = [loss for _, loss in self.losses]
        cells = min(width, len(values))
        means = []
        for cell in range(cells):
            part = values[cell * len(values) // cells : (cell + 1) * len(values) // cells]
            means.append(sum(part) / len(part))
        low, high = min(means), max(means)
        top = len(_SPARKLINE_BLOCKS) - 1
        return "".join(
            _SPARKLINE_BLOCKS[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means
        )


def change_lines(previous: WatchFrame | None, frame: WatchFrame) -> Iterator[Text]:
    """One line per change that is worth keeping in the scrollback."""
    job, status = frame.job, frame.job.status
    old = previous.job.status if previous else None
    if old is None:
        yield Text.assemble(
            (job_text.qualified_name(job.metadata), "bold"), f" in queue {job.spec.queue}, {_gang_summary(job)}"
        )
    saved, earlier = status.last_checkpoint, old.last_checkpoint if old else None
    has_saved = old is not None and saved is not None and saved != earlier
    checkpoint = "checkpoint" if saved is None or saved.step is None else f"checkpoint at step {saved.step}"
    if has_saved and old is not None and old.phase == "Running":  # before an eviction or a restart seen with it
        yield Text(checkpoint, style="dim")
        has_saved = False
    if old is None or (old.phase, _waiting_key(previous)) != (status.phase, _waiting_key(frame)):
        yield from _phase_line(frame)
    if old is not None and status.restarts > old.restarts:
        failure = status.last_failure
        found = (failure_cause(failure), f"pod {failure.pod} {_exit_summary(failure)}") if failure else ()
        cause = f": {'; '.join(filter(None, found))}" if found else ""
        yield Text(f"restarts ({status.restarts} of {job.spec.failure_policy.max_restarts}){cause}", style="yellow")
    elif old is not None and status.attempt > old.attempt:
        yield Text(f"attempt {status.attempt}", style="yellow")
    yield from _resume_line(previous, frame)
    if has_saved:
        yield Text(checkpoint, style="dim")


def _resume_line(previous: WatchFrame | None, frame: WatchFrame) -> Iterator[Text]:
    """The step from which a later attempt resumes, which explains a step number that decreases."""
    heartbeat, earlier = frame.heartbeat, previous.heartbeat if previous else None
    if previous is None or heartbeat is None or not heartbeat.get("attempt") or heartbeat.get("phase") == "setup":
        return
    known = earlier is not None and earlier.get("attempt") == heartbeat["attempt"] and earlier.get("phase") != "setup"
    if known or heartbeat.get("step") is None:
        return
    checkpoint = frame.job.status.last_checkpoint
    if heartbeat.get("phase") == "compile":  # sent before the first step
        message = f"resumed from step {heartbeat['step']}" if heartbeat["step"] else "restarted from step 0"
    elif checkpoint is not None and checkpoint.step is not None and checkpoint.step <= heartbeat["step"]:
        message = f"resumed from step {checkpoint.step}"
    else:
        message = f"attempt {heartbeat['attempt']} is at step {heartbeat['step']}"
    yield Text(message, style="yellow")


def render_frame(frame: WatchFrame, curve: LossCurve, width: int) -> RenderableType:
    """The status block of a terminal, redrawn for every frame."""
    status = frame.job.status
    if frame.heartbeat is None or status.phase in ("Pending", "Suspended", "Admitted"):
        since = status.submitted_at if status.phase == "Pending" else status.admitted_at
        state = {"Pending": "waiting", "Admitted": "starting"}.get(status.phase, status.phase.lower())
        text = Text.assemble((f"{_spinner(frame.now)} {state}", job_text.PHASE_STYLES[status.phase]))
        if since is not None:
            text.append(f" for {format_duration(frame.now - since)}")
        if status.phase == "Pending":
            text.append(_queue_position_text(frame))
        if status.phase == "Running":
            text.append("; no step reported yet")
        return text
    if message := startup_message(frame.heartbeat, frame.now):
        return Text.assemble((f"{_spinner(frame.now)} {message}", job_text.PHASE_STYLES["Running"]))
    return Group(
        _progress_bar(frame.heartbeat, width),
        *_metric_lines(frame.heartbeat, width),
        *_loss_line(curve, frame.heartbeat, width),
    )


def end_summary(frame: WatchFrame) -> RenderableType:
    """One line with the result; for a failed job also the end of its log."""
    job, status = frame.job, frame.job.status
    ran = run_time_s(job.status, frame.now)
    line = Text.assemble(
        (f"{job_text.PHASE_SYMBOLS[status.phase]} {status.phase}", f"bold {job_text.PHASE_STYLES[status.phase]}"),
        f" after {format_duration(ran)}" if ran is not None else "",
    )
    if status.restarts:
        line.append(f", {pluralize(status.restarts, 'restart')}")
    if status.phase == "Succeeded":
        return line
    line.append(f"  {job_text.reason_sentence(status)}")
    if advice := job_text.what_to_try_next(status):
        line.append(f"\ntry: {advice}", style="yellow")
    failure = status.last_failure
    if failure is None or not failure.log_tail.strip():
        return line
    code = f"exit code {failure.exit_code}" if failure.exit_code is not None else failure.reason
    where = Text(f"last lines of {failure.pod} ({code}):", style="red")
    return Group(line, where, Text(sanitize(failure.log_tail).rstrip("\n"), style="dim"))


def _spinner(now: float) -> str:
    return _SPINNER_FRAMES[int(now * 8) % len(_SPINNER_FRAMES)]


def _phase_line(frame: WatchFrame) -> Iterator[Text]:
    job, status = frame.job, frame.job.status
    if status.phase in TERMINAL_PHASES:
        return
    text = Text(
        f"{job_text.PHASE_SYMBOLS[status.phase]} {status.phase.lower()}", style=job_text.PHASE_STYLES[status.phase]
    )
    if status.phase == "Pending":
        code, message = job_text.phase_reason(job.status)
        text.append(_queue_position_text(frame), style="default")
        text.append(f"; {code}: {message}" if code else "", style="default")
    elif status.placement:
        nodes = sorted({share.node for role in status.placement for share in role.nodes})
        shown = ", ".join(nodes) if len(nodes) <= 4 else f"{pluralize(len(nodes), 'node')} ({nodes[0]} to {nodes[-1]})"
        text.append(f" on {shown}", style="default")
    yield text


def _exit_summary(failure: LastFailure) -> str:
    return f"failed ({failure.reason})" if failure.exit_code is None else f"ended with {failure.exit_code}"


def _queue_position_text(frame: WatchFrame) -> str:
    status = frame.job.status
    message = f", number {status.queue_position} in queue {frame.job.spec.queue}" if status.queue_position else ""
    if status.estimated_start is not None:
        message += f", starts about {format_time(status.estimated_start, frame.now)}"
    return message


def _waiting_key(frame: WatchFrame | None) -> object:
    """A pending job's new line is printed when this changes: position and reason code, but not the numbers in the
    message."""
    if frame is None or frame.job.status.phase != "Pending":
        return None
    return frame.job.status.queue_position, job_text.phase_reason(frame.job.status)[0]


def _gang_summary(job: TrainingJob) -> str:
    return ", ".join(f"{pluralize(role.replicas, 'pod')} of {role.name}" for role in job.spec.roles)


def _progress_bar(heartbeat: Mapping[str, Any], width: int) -> Text:
    step, steps = heartbeat.get("step") or 0, heartbeat.get("steps")
    if not steps:
        return Text(f"step {step}", style="bold")
    cells = max(10, min(50, width - 40))
    filled = min(cells, round(cells * step / steps))
    left = eta_s(heartbeat)
    eta = f"  ETA {format_duration(left)}" if left is not None else ""
    return Text.assemble(
        ("█" * filled, "green"), ("░" * (cells - filled), "bright_black"), (f" step {step}/{steps}", "bold"),
        f"  {100 * step / steps:.0f}%", (eta, "cyan"),
    )  # fmt: skip


def _metric_lines(heartbeat: Mapping[str, Any], width: int) -> list[Text]:
    parts = []
    if heartbeat.get("phase") in ("setup", "compile", "checkpoint"):
        parts.append(f"{heartbeat['phase']}…")
    if heartbeat.get("tokens_per_s"):
        parts.append(f"{format_count(heartbeat['tokens_per_s'])} tokens/s")
    if heartbeat.get("step_time_s"):
        parts.append(f"{heartbeat['step_time_s'] * 1000:.0f} ms/step")
    if heartbeat.get("mfu"):
        parts.append(f"MFU {heartbeat['mfu'] * 100:.1f}%")
    if heartbeat.get("peak_memory_bytes"):
        parts.append(f"peak memory {format_bytes(heartbeat['peak_memory_bytes'])}")
    if called := sum((heartbeat.get("collectives") or {}).values()):
        parts.append(f"{format_count(called)} collectives")
    if heartbeat.get("checkpoint_step") is not None:
        parts.append(f"checkpoint at step {heartbeat['checkpoint_step']}")
    if heartbeat.get("world_size"):
        parts.append(pluralize(heartbeat["world_size"], "rank"))
    return [Text.assemble(line, style="dim") for line in wrap_parts(parts, width)]


def _loss_line(curve: LossCurve, heartbeat: Mapping[str, Any], width: int) -> Iterator[Text]:
    if heartbeat.get("loss") is None:
        return
    first = f" from {curve.losses[0][1]:.4g}" if len(curve.losses) > 1 else ""
    spark = curve.sparkline(max(10, min(50, width - 40)))
    yield Text.assemble(
        (spark, "magenta"), " " if spark else "", (f"loss {heartbeat['loss']:.4g}", "bold"), (first, "dim")
    )
