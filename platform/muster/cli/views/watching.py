"""The picture of `muster watch`: the place in the queue while a job waits, its curve while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from muster.amounts import count, duration, moment, plural, size
from muster.cli.views import job_words
from muster.progress import eta_s, preparing
from muster.spec import ENDED_PHASES, LastFailure, TrainingJob
from muster.terminal import plain
from muster.wrapping import in_lines

_SPARKS = "▁▂▃▄▅▆▇█"
_DOTS = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known at one moment: the job, and the beat that speaks for it, if there is one."""

    job: TrainingJob
    beat: Mapping[str, Any] | None
    now: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses by step, as far as they were seen."""

    losses: tuple[tuple[int, float], ...] = ()

    def with_beat(self, beat: Mapping[str, Any] | None) -> Curve:
        """The curve with the beat's loss; a resume that goes back takes the later ones off."""
        if beat is None or beat.get("loss") is None or beat.get("step") is None:
            return self
        step = int(beat["step"])
        if self.losses and self.losses[-1] == (step, beat["loss"]):
            return self
        return Curve((*(point for point in self.losses if point[0] < step), (step, float(beat["loss"]))))

    def spark(self, width: int) -> str:
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
        top = len(_SPARKS) - 1
        return "".join(_SPARKS[round((mean - low) / (high - low) * top) if high > low else 0] for mean in means)


def news(before: Sight | None, sight: Sight) -> Iterator[Text]:
    """One line for each thing that has changed and that one would want to read again later."""
    job, status = sight.job, sight.job.status
    old = before.job.status if before else None
    if old is None:
        yield Text.assemble((job_words.label(job), "bold"), f" in queue {job.spec.queue}, {_gang(job)}")
    if old is None or (old.phase, _waits(before)) != (status.phase, _waits(sight)):
        yield from _phase_line(sight)
    if old is not None and status.restarts > old.restarts:
        failure = status.last_failure
        told = f": pod {failure.pod} {_how_it_ended(failure)}" if failure else ""
        yield Text(f"restarts ({status.restarts} of {job.spec.failure_policy.max_restarts}){told}", style="yellow")
    elif old is not None and status.attempt > old.attempt:
        yield Text(f"attempt {status.attempt}", style="yellow")
    yield from _resumed(before, sight)
    new_checkpoint = status.last_checkpoint.step if status.last_checkpoint else None
    old_checkpoint = old.last_checkpoint.step if old and old.last_checkpoint else None
    if old is not None and new_checkpoint is not None and new_checkpoint != old_checkpoint:
        yield Text(f"checkpoint at step {new_checkpoint}", style="dim")


def _resumed(before: Sight | None, sight: Sight) -> Iterator[Text]:
    """From which step a later attempt goes on, so that nobody wonders why the steps go back."""
    beat, earlier = sight.beat, before.beat if before else None
    if before is None or beat is None or not beat.get("attempt") or beat.get("phase") == "setup":
        return
    known = earlier is not None and earlier.get("attempt") == beat["attempt"] and earlier.get("phase") != "setup"
    if known or beat.get("step") is None:
        return
    checkpoint = sight.job.status.last_checkpoint
    if beat.get("phase") == "compile":  # said before the first step
        told = f"resumed from step {beat['step']}" if beat["step"] else "starts again from the beginning"
    elif checkpoint is not None and checkpoint.step <= beat["step"]:
        told = f"resumed from step {checkpoint.step}"
    else:
        told = f"attempt {beat['attempt']} is at step {beat['step']}"
    yield Text(told, style="yellow")


def picture(sight: Sight, curve: Curve, width: int) -> RenderableType:
    """The block that is drawn anew."""
    status = sight.job.status
    if sight.beat is None or status.phase in ("Pending", "Suspended", "Admitted"):
        since = status.submitted_at if status.phase == "Pending" else status.admitted_at
        told = {"Pending": "waiting", "Admitted": "starting"}.get(status.phase, status.phase.lower())
        text = Text.assemble((f"{_dot(sight.now)} {told}", job_words.STYLES[status.phase]))
        if since is not None:
            text.append(f" for {duration(sight.now - since)}")
        if status.phase == "Pending":
            text.append(_queue_place(sight))
        if status.phase == "Running":
            text.append("; no step was reported yet")
        return text
    if told := preparing(sight.beat, sight.now):
        return Text.assemble((f"{_dot(sight.now)} {told}", job_words.STYLES["Running"]))
    return Group(_bar(sight.beat, width), *_figures(sight.beat, width), *_loss_line(curve, sight.beat, width))


def ending(sight: Sight) -> RenderableType:
    """How it ended, in a line; for a failed job what its log ended with."""
    job, status = sight.job, sight.job.status
    ran = job_words.ran_for(job, sight.now)
    code, message = job_words.reason(job)
    line = Text.assemble(
        (f"{job_words.MARKS[status.phase]} {status.phase}", f"bold {job_words.STYLES[status.phase]}"),
        f" after {duration(ran)}" if ran is not None else "",
    )
    if status.restarts:
        line.append(f", {plural(status.restarts, 'restart')}")
    if status.phase == "Succeeded":
        return line
    line.append(f"  {code}: {message}" if code else "")
    failure = status.last_failure
    if failure is None or not failure.log_tail.strip():
        return line
    code = f"exit code {failure.exit_code}" if failure.exit_code is not None else failure.reason
    where = Text(f"last lines of {failure.pod} ({code}):", style="red")
    return Group(line, where, Text(plain(failure.log_tail).rstrip("\n"), style="dim"))


def _dot(now: float) -> str:
    return _DOTS[int(now * 8) % len(_DOTS)]


def _phase_line(sight: Sight) -> Iterator[Text]:
    job, status = sight.job, sight.job.status
    if status.phase in ENDED_PHASES:
        return
    told = Text(f"{job_words.MARKS[status.phase]} {status.phase.lower()}", style=job_words.STYLES[status.phase])
    if status.phase == "Pending":
        code, message = job_words.reason(job)
        told.append(_queue_place(sight), style="default")
        told.append(f"; {code}: {message}" if code else "", style="default")
    elif status.placement:
        nodes = sorted({share.node for role in status.placement for share in role.nodes})
        shown = ", ".join(nodes) if len(nodes) <= 4 else f"{plural(len(nodes), 'node')} ({nodes[0]} to {nodes[-1]})"
        told.append(f" on {shown}", style="default")
    yield told


def _how_it_ended(failure: LastFailure) -> str:
    return f"failed ({failure.reason})" if failure.exit_code is None else f"ended with {failure.exit_code}"


def _queue_place(sight: Sight) -> str:
    status = sight.job.status
    told = f", number {status.queue_position} in queue {sight.job.spec.queue}" if status.queue_position else ""
    if status.estimated_start is not None:
        told += f", starts about {moment(status.estimated_start, sight.now)}"
    return told


def _waits(sight: Sight | None) -> object:
    """What makes a new line while a job waits: another place or another reason, not another wording of numbers."""
    if sight is None or sight.job.status.phase != "Pending":
        return None
    return sight.job.status.queue_position, job_words.reason(sight.job)[0]


def _gang(job: TrainingJob) -> str:
    return ", ".join(f"{plural(role.replicas, 'pod')} of {role.name}" for role in job.spec.roles)


def _bar(beat: Mapping[str, Any], width: int) -> Text:
    step, steps = beat.get("step") or 0, beat.get("steps")
    if not steps:
        return Text(f"step {step}", style="bold")
    cells = max(10, min(50, width - 40))
    filled = min(cells, round(cells * step / steps))
    left = eta_s(beat)
    eta = f"  ETA {duration(left)}" if left is not None else ""
    return Text.assemble(
        ("█" * filled, "green"), ("░" * (cells - filled), "bright_black"), (f" step {step}/{steps}", "bold"),
        f"  {100 * step / steps:.0f}%", (eta, "cyan"),
    )  # fmt: skip


def _figures(beat: Mapping[str, Any], width: int) -> list[Text]:
    parts = []
    if beat.get("phase") in ("setup", "compile", "checkpoint"):
        parts.append(f"{beat['phase']}…")
    if beat.get("tokens_per_s"):
        parts.append(f"{count(beat['tokens_per_s'])} tokens/s")
    if beat.get("step_time_s"):
        parts.append(f"{beat['step_time_s'] * 1000:.0f} ms a step")
    if beat.get("mfu"):
        parts.append(f"MFU {beat['mfu'] * 100:.1f}%")
    if beat.get("peak_memory_bytes"):
        parts.append(f"peak memory {size(beat['peak_memory_bytes'])}")
    if beat.get("checkpoint_step") is not None:
        parts.append(f"checkpoint at step {beat['checkpoint_step']}")
    if beat.get("world_size"):
        parts.append(plural(beat["world_size"], "rank"))
    return [Text.assemble(line, style="dim") for line in in_lines(parts, width)]


def _loss_line(curve: Curve, beat: Mapping[str, Any], width: int) -> Iterator[Text]:
    if beat.get("loss") is None:
        return
    first = f" from {curve.losses[0][1]:.4g}" if len(curve.losses) > 1 else ""
    spark = curve.spark(max(10, min(50, width - 40)))
    yield Text.assemble((spark, "magenta"), " " if spark else "", (f"loss {beat['loss']:.4g}", "bold"), (first, "dim"))
