"""What a run folder says of how the time of a job was spent: launches, steps, and attempts that were asked to stop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from muster.tracing.shared_folder import open_regular
from muster.usage.goodput import Launch, RecordedStep, RunRecords

_MAX_BYTES: Final = 256 << 20
"""Of a file; later lines are not read, and what they explain is unknown."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


Record = TypeVar("Record", bound=msgspec.Struct)


class _LaunchRecord(msgspec.Struct):
    attempt: Count
    at: float
    kind: Literal["start", "failure", "end"]


class _StepRecord(msgspec.Struct):
    step: Count
    at: float
    attempt: Count = 0
    step_time_s: float | None = None
    checkpoint_wait_s: float | None = None
    trace_start_s: float | None = None
    trace_write_s: float | None = None


class _Event(msgspec.Struct):
    kind: str = ""
    attempt: Count = 0


def read_run_records(run_dir: Path, role: str) -> RunRecords:
    """The records of the role with rank 0. Files and lines that are missing or cannot be read are left out."""
    launches = _lines(run_dir / "launches" / f"{role}-0.jsonl", _LaunchRecord)
    steps = _lines(run_dir / "metrics" / "rank-0.jsonl", _StepRecord)
    events = _lines(run_dir / "events.jsonl", _Event)
    found = [
        RecordedStep(
            one.attempt,
            one.step,
            one.at,
            _seconds(one.step_time_s),
            _seconds(one.checkpoint_wait_s),
            _seconds(one.trace_start_s) + _seconds(one.trace_write_s),
        )
        for one in steps
        if math.isfinite(one.at)
    ]
    return RunRecords(
        launches=tuple(Launch(one.attempt, one.at, one.kind) for one in launches if math.isfinite(one.at)),
        steps=tuple(found),
        stopped=frozenset(event.attempt for event in events if event.kind == "stopping"),
    )


def _lines(path: Path, kind: type[Record]) -> list[Record]:
    decoder = msgspec.json.Decoder(kind)
    found: list[Record] = []
    try:
        with open_regular(path) as file:
            left = _MAX_BYTES
            while left > 0 and (line := file.readline(left)):
                left -= len(line)
                try:
                    found.append(decoder.decode(line))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    continue  # a killed job leaves a part of a line
    except OSError:
        pass
    return found


def _seconds(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0
