"""What a run folder says of how the time of a job was spent: launches, steps, and attempts that were asked to stop.

Each file is read on from where it was read before. The state has a bounded size, so that programs that are started
again and again (`muster describe`) keep it in the run folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Final, Literal, TypeVar

import msgspec

from muster.cluster import RunTime
from muster.errors import InvalidTrace
from muster.tracing.shared_folder import SharedFolder
from muster.usage.goodput import Launch, RunRecords, divide
from muster.usage.goodput_text import goodput_sentence
from muster.usage.run_account import AttemptAccount, RecordedStep, RunAccount, Span

STATE_FILE: Final = "goodput.json"
_OWNER: Final = "goodput"
_VERSION: Final = 1
_MAX_BYTES: Final = 256 << 20
"""Of a file at a time; the next reading goes on there."""
_MAX_STATE_BYTES: Final = 4 << 20
_WORTH_KEEPING_BYTES: Final = 1 << 20
"""Of files that were read anew: then the state is kept."""
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

    def recorded(self) -> RecordedStep:
        return RecordedStep(
            self.attempt,
            self.step,
            self.at,
            _seconds(self.step_time_s),
            _seconds(self.checkpoint_wait_s),
            _seconds(self.trace_start_s) + _seconds(self.trace_write_s),
        )


class _Event(msgspec.Struct):
    kind: str = ""
    attempt: Count = 0


class _Position(msgspec.Struct):
    """How far a file was read: that of an inode, to a byte."""

    inode: int = 0
    offset: Count = 0


class _State(msgspec.Struct):
    version: int = _VERSION
    positions: dict[str, _Position] = {}
    launches: list[_LaunchRecord] = []
    steps: RunAccount = msgspec.field(default_factory=RunAccount)
    stopped: set[Count] = set()


class RunRecordReader:
    """Reads the records of the role with rank 0. Files and lines that are missing or cannot be read are left out."""

    def __init__(self, folder: SharedFolder, role: str) -> None:
        self._folder = folder
        self._launches, self._metrics = f"launches/{role}-0.jsonl", "metrics/rank-0.jsonl"
        self._state = _State()
        self._new_bytes = 0
        self._max_bytes = _MAX_BYTES
        self._left = False

    def division(self, now: float, max_bytes: int | None = None) -> RunTime | None:
        """Into what the time of the pods is divided until `now`, after reading on, so much of each file; None without
        records."""
        return divide(self.records(max_bytes), now)

    @property
    def has_read_all(self) -> bool:
        """Whether the last reading came to the end of the files."""
        return not self._left

    def records(self, max_bytes: int | None = None) -> RunRecords:
        """All records so far, after reading on, so much of each file."""
        state, self._left = self._state, False
        self._max_bytes = _MAX_BYTES if max_bytes is None else max_bytes
        try:
            state.launches += [one for one, _ in self._read(self._launches, _LaunchRecord) if math.isfinite(one.at)]
            for event, _ in self._read("events.jsonl", _Event):
                if event.kind == "stopping":
                    state.stopped.add(event.attempt)
            for step, span in self._read(self._metrics, _StepRecord):
                if math.isfinite(step.at):
                    state.steps.add(step.recorded(), span, self._read_again)
        except _Replaced:  # by another run: nothing of the old files counts
            self._state = _State()
            return self.records(max_bytes)
        launches = tuple(Launch(one.attempt, one.at, one.kind) for one in state.launches)
        return RunRecords(launches, state.steps, frozenset(state.stopped))

    def load(self) -> None:
        """Go on from the state that is kept in the run folder, if there is a valid one."""
        with suppress(OSError, InvalidTrace, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            state = msgspec.json.decode(self._folder.read(STATE_FILE, _MAX_STATE_BYTES), type=_State)
            if state.version == _VERSION:
                self._state = state

    def save(self) -> None:
        """Keep the state in the run folder, if much was read since `load`; not in one that is read-only or full."""
        if self._new_bytes < _WORTH_KEEPING_BYTES:
            return
        content = msgspec.json.encode(self._state)
        if len(content) <= _MAX_STATE_BYTES:
            with suppress(OSError):
                self._folder.write(STATE_FILE, content, owner=_OWNER)
                self._new_bytes = 0

    def _read(self, name: str, kind: type[Record]) -> Iterator[tuple[Record, Span]]:
        """The records of the lines that are new. Raises _Replaced if it is another file than before, or a shorter
        one."""
        position = self._state.positions.setdefault(name, _Position())
        try:
            file = self._folder.open(name)
        except OSError:
            return
        with file:
            status = os.fstat(file.fileno())
            if position.offset and (position.inode != status.st_ino or status.st_size < position.offset):
                raise _Replaced
            position.inode = status.st_ino
            if status.st_size == position.offset:
                return
            until = position.offset + self._max_bytes
            self._left |= status.st_size > until
            for record, span in _records(file, Span(position.offset, until), kind):
                self._new_bytes += span.end - position.offset
                position.offset = span.end
                if record is not None:
                    yield record, span

    def _read_again(self, account: AttemptAccount) -> Iterator[tuple[RecordedStep, Span]]:
        with suppress(OSError), self._folder.open(self._metrics) as file:
            for record, span in _records(file, Span(account.start, account.end), _StepRecord):
                if record is not None and record.attempt == account.attempt and math.isfinite(record.at):
                    yield record.recorded(), span


class _Replaced(Exception):
    """A file is not the one that was read before."""


def _records(file: IO[bytes], part: Span, kind: type[Record]) -> Iterator[tuple[Record | None, Span]]:
    """The complete lines in a part of a file; None for one that is no record. The last line of a killed job may be a
    part of one."""
    decode: Callable[[bytes], Record] = msgspec.json.Decoder(kind).decode
    at = part.start
    file.seek(at)
    while at < part.end and (line := file.readline(part.end - at)).endswith(b"\n"):
        span = Span(at, at + len(line))
        at = span.end
        try:
            yield decode(line), span
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield None, span


def read_run_time(run_dir: Path, role: str, now: float) -> RunTime | None:
    """Into what the time of the pods of a run folder on this host is divided, by the records of the role with rank 0;
    None without records."""
    reader = RunRecordReader(SharedFolder(run_dir), role)
    reader.load()
    found = reader.division(now)
    reader.save()
    return found


def run_sentence(run_dir: Path) -> str:
    """What the pods of a run folder spent their time on until the last record, as a sentence; empty without records."""
    folder = SharedFolder(run_dir)
    with suppress(OSError):
        for name in folder.file_names("launches"):
            role = name.removesuffix("-0.jsonl")
            if role != name:
                records = RunRecordReader(folder, role).records()
                times = [one.at for one in records.launches] + [one.last_at for one in records.steps.attempts.values()]
                found = divide(records, max(times, default=0.0))
                attempts = {one.attempt for one in records.launches}
                return "" if found is None else goodput_sentence(found.milliseconds, len(attempts) - 1)
    return ""


def _seconds(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) and value > 0 else 0.0
