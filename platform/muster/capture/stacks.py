"""Stacks of the ranks of a job that hangs: the request to the launchers, their answers, and what they say.

The launchers of the pods answer, not the ranks (docs/reference/run-folder.md).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from muster.api.spec.captures import FINISHED_CAPTURE_PHASES, MAX_CAPTURED_RANKS, CapturedRank, TraceCaptureStatus
from muster.capture.folder import CAPTURE, observe, rank_objects, write_if_changed
from muster.capture.protocol import MAX_WORLD_SIZE, CaptureObservation, HungRank, RankReport
from muster.capture.status_changes import finished
from muster.errors import InvalidTrace
from muster.heartbeats.parse import parse_count
from muster.text import pluralize, rank_list
from muster.tracing.hang.hangs import explain_hang
from muster.tracing.read.flight_recorder import FLIGHT_RECORDER, RECORDER_NAME, read_open_dump
from muster.tracing.read.restricted_pickle import MemoryLimits
from muster.tracing.shared_folder import SharedFolder

STACKS_WITHIN_S = 15.0
DUMPS_CPU_S = 2.0
"""To read dumps of flight recorders: one with 2000 collectives takes a tenth of a second, a hostile one two seconds."""
NO_LAUNCHER = (
    "no answer from a launcher; stacks are saved of ranks that Muster's components start, or: python -m "
    "muster_components.launch"
)
_REQUEST = f"{CAPTURE}/stacks-request.json"
_ANSWER_PREFIX = "stacks-"
_MAX_FRAMES, _MAX_TEXT = 32, 500
_OTHER_CODE = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
_POLL_S = 0.1
_RECORDER = re.compile(rf"{FLIGHT_RECORDER}/{RECORDER_NAME.pattern}")
_RECORDER_LIMITS = MemoryLimits(pickle_bytes=8 << 20, memory_bytes=128 << 20)
"""A collector has little memory; 2000 collectives, torch's default, are less than 2 MiB."""


def collect_stacks(run_dir: Path, request: str, attempt: int, job_runs: Callable[[], bool]) -> list[HungRank]:
    """Request the stacks of all ranks of an attempt, and wait for them: until all ranks of the job have answered,
    the job does not run any more, or `STACKS_WITHIN_S`. Raises OSError if the run folder cannot be written."""
    run = SharedFolder(run_dir)
    request_stacks(run, request, attempt, "muster.trace")
    until = time.monotonic() + STACKS_WITHIN_S
    while True:
        reports = [report for report in observe(run, time.time()).reports if report.attempt == attempt]
        found = {one.rank: one for one in read_stacks(run, request)}
        expected = expected_ranks(reports, found.values())
        if expected <= set(found) or time.monotonic() > until or not job_runs():
            missing = (HungRank(rank, reason=NO_LAUNCHER) for rank in sorted(expected - set(found)))
            return sorted([*found.values(), *missing], key=lambda one: one.rank)
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class StacksProgress:
    """The new status. `is_complete`: what remains is to compare the stacks of the ranks, and `with_comparison`.
    `missing`: ranks that did not answer, which are to be compared too."""

    status: TraceCaptureStatus
    is_complete: bool = False
    missing: tuple[HungRank, ...] = ()


def with_comparison(status: TraceCaptureStatus, sentence: str, now: float) -> TraceCaptureStatus:
    """The status of a capture that has succeeded; `sentence` is that of `describe_stacks`."""
    return finished(status, "Succeeded", "StacksSaved", sentence, now)


def advance_stacks(status: TraceCaptureStatus, seen: CaptureObservation, attempt: int, now: float) -> StacksProgress:
    """The next state of a capture of stacks: requested, then complete when all ranks have answered, or in time."""
    if status.phase in FINISHED_CAPTURE_PHASES:
        return StacksProgress(status)
    if not status.proposal:
        begun = {
            "proposal": 1,
            "attempt": attempt,
            "requested_at": now,
            "message": "waiting for the stacks of the ranks",
        }
        return StacksProgress(status.model_copy(update=begun))
    found = {one.rank: one for one in seen.stacks}
    reports = [report for report in seen.reports if report.attempt == status.attempt]
    expected = expected_ranks(reports, found.values())
    if not expected <= set(found) and now < (status.requested_at or now) + STACKS_WITHIN_S:
        return StacksProgress(status)
    unreachable = ""
    if seen.unreachable:
        count = len(seen.unreachable)
        unreachable = f"{pluralize(count, 'collector')} did not answer: {'; '.join(seen.unreachable[:3])}"
        if not seen.reports and not found:
            return StacksProgress(finished(status, "Failed", "CollectorUnreachable", unreachable, now))
    missing = unreachable[:_MAX_TEXT] or NO_LAUNCHER
    ranks = [found.get(rank, HungRank(rank, reason=missing)) for rank in sorted(expected | set(found))]
    ranks = ranks[:MAX_CAPTURED_RANKS]
    most_frames = max(3, min(16, 1024 // len(ranks)))  # an object has at most 1.5 MiB
    entries = [
        CapturedRank(
            rank=one.rank,
            state="collected" if one.frames else "failed",
            reason=one.reason,
            file=one.file[:256],
            frames=list(one.frames[:most_frames]),
        )
        for one in ranks
    ]
    status = status.model_copy(update={"ranks": entries})
    if not any(one.frames for one in ranks):
        why = "; ".join(dict.fromkeys(one.reason for one in ranks))
        reason = "CollectorUnreachable" if unreachable else "NoStacks"
        return StacksProgress(finished(status, "Failed", reason, why, now))
    return StacksProgress(status, is_complete=True, missing=tuple(one for one in ranks if one.rank not in found))


def request_stacks(run: SharedFolder, request: str, attempt: int, owner: str) -> None:
    """Write the request, unless it is there already. Raises OSError."""
    write_if_changed(run, _REQUEST, json.dumps({"id": request, "attempt": attempt}).encode(), owner)


def expected_ranks(reports: Iterable[RankReport], stacks: Iterable[HungRank]) -> set[int]:
    """The ranks of an attempt with these heartbeats and these answers of launchers."""
    sizes = [report.world_size for report in reports] + [one.world_size for one in stacks]
    return set(range(min(max(sizes, default=1) or 1, MAX_WORLD_SIZE)))


def read_stacks(
    run: SharedFolder,
    request: str,
    attempt: int | None = None,
    is_own: Callable[[HungRank], bool] = lambda one: True,
) -> list[HungRank]:
    """The answers to a request, of an attempt (None: any), by rank. Own ones have their collectives, as far as these
    can be read in `DUMPS_CPU_S` of CPU time."""
    answers = (
        fields
        for fields in rank_objects(run, CAPTURE, prefix=_ANSWER_PREFIX)
        if fields.get("id") == request and attempt in (None, fields.get("attempt"))
    )
    until_s, found = time.thread_time() + DUMPS_CPU_S, []
    for fields in answers:
        one = _parse(fields)
        if one is not None:
            is_read = is_own(one) and time.thread_time() < until_s
            found.append(_with_collectives(run, one, fields) if is_read else one)
    return sorted(found, key=lambda one: one.rank)


def _with_collectives(run: SharedFolder, one: HungRank, fields: Mapping[str, Any]) -> HungRank:
    """With the collectives in the dump that the launcher names; a dump that cannot be read is left out."""
    name = fields.get("recorder")
    if isinstance(name, str) and _RECORDER.fullmatch(name):
        with suppress(OSError, InvalidTrace), run.open(name) as file:
            found = read_open_dump(file, run.path / name, _RECORDER_LIMITS)
            return msgspec.structs.replace(one, collectives=msgspec.structs.replace(found, rank=one.rank))
    return one


def describe_stacks(ranks: Sequence[HungRank]) -> str:
    """Which rank the others wait for, if the flight recorder knows; then where the ranks are, those that differ from
    the others first."""
    known = [one.collectives for one in ranks if one.collectives is not None]
    sentences = explain_hang(known, {one.rank: _where(one) for one in ranks})
    places = _describe_places(ranks)
    return "; ".join([*sentences, places]) if sentences else places


def _where(one: HungRank) -> str:
    return (f" in pod {one.pod}" if one.pod else "") + (f" on node {one.node}" if one.node else "")


def _describe_places(ranks: Sequence[HungRank]) -> str:
    places: dict[tuple[str, ...], list[HungRank]] = {}
    for one in ranks:
        if one.frames:
            places.setdefault(tuple(_without_line(frame) for frame in one.frames), []).append(one)
    groups = sorted(places.values(), key=lambda group: (len(group), group[0].rank))
    if not groups:
        return "no stacks"
    verb = "is" if len(ranks) == 1 else "are all" if len(groups) == 1 and len(groups[0]) == len(ranks) else ""
    parts = []
    for group in groups:
        who = rank_list(one.rank for one in group)
        if len(group) == 1:
            who += _where(group[0])
        parts.append(f"{who} {verb or ('is' if len(group) == 1 else 'are')} in {_place(group[0].frames)}")
    return "; ".join(parts)


def _place(frames: Sequence[str]) -> str:
    """The innermost frame, and the innermost one of the user's own code if that is another."""
    own = next((frame for frame in frames if not any(part in frame for part in _OTHER_CODE)), None)
    return frames[0] if own in (None, frames[0]) else f"{frames[0]}, called from {own}"


def _without_line(frame: str) -> str:
    return frame.rpartition(":")[0]


def _parse(fields: Mapping[str, Any]) -> HungRank | None:
    rank, frames = parse_count(fields.get("rank")), fields.get("frames")
    if rank is None or not isinstance(frames, list):
        return None
    reason, file = fields.get("reason"), fields.get("file")
    return HungRank(
        rank,
        tuple(frame[:_MAX_TEXT] for frame in frames[:_MAX_FRAMES] if isinstance(frame, str)),
        reason[:_MAX_TEXT] if isinstance(reason, str) else "",
        file[:_MAX_TEXT] if isinstance(file, str) else "",
        world_size=parse_count(fields.get("world_size")) or 0,
    )
