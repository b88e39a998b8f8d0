"""Reads a job's run folder (docs/reference/run-folder.md): its logs, their tails, lines between two times, heartbeats.

A log has a size limit: its shim punches a hole into the oldest part, so that the rest keeps its offsets. Lines have no
time. The shim records the log's size just before and after it grew, so `since` and `until` are exact to about a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from muster.api.spec import TERMINAL_PHASES, TrainingJob
from muster.cluster import Heartbeat
from muster.errors import NotFound, Refused
from muster.heartbeats.parse import (
    NUMERIC_FIELDS,
    ClockReading,
    newest_checkpoint,
    parse_collectives,
    parse_field,
    parse_heartbeat,
)
from muster.local.pod_folder import LogSize
from muster.tracing.shared_folder import IrregularFile, SharedFolder

TAIL_BYTES = 4096
_POLL_S = 0.2
_BLOCK_BYTES = 2**18
_MAX_LINE_BYTES = 2**16
_FINISHED_JOB_PHASES = ("Terminating", *TERMINAL_PHASES)
_FINISHED_POD_PHASES = ("Succeeded", "Failed", "Lost")
_FileStamp = tuple[int, int] | None  # modification time in ns and inode; None: no file


def log_path(run_dir: Path, role: str, index: int, attempt: int) -> Path:
    """The log of one pod (docs/reference/run-folder.md)."""
    return run_dir / "logs" / f"{role}-{index}.attempt-{attempt}.log"


def tail(path: Path) -> str:
    """The last 4 KiB, from the beginning of a line if there is one; empty without a regular file."""
    try:
        with _open_unlinked(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    if size > TAIL_BYTES and b"\n" in data[:-1]:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def byte_range(sizes: list[LogSize], since: float | None, until: float | None) -> tuple[int, int | None]:
    """Bytes [begin, end) of a log that may have been written from `since` to `until`; end None: to its end.

    `sizes` are in the order in which they were recorded; the clock may have been set back between two of them. Nothing
    requested is left out, except within a second of such a change; up to a second more may be included, or all if
    there are no sizes.
    """
    begin = 0
    if since is not None:
        later = (index for index, entry in enumerate(sizes) if entry.latest > since)
        earlier = next(later, len(sizes))
        begin = sizes[earlier - 1].size if earlier else 0
    end = None
    if until is not None:
        last = max((index for index, entry in enumerate(sizes) if entry.earliest < until), default=-1)
        end = sizes[last + 1].size if last + 1 < len(sizes) else None
    return begin, end


def whole_lines(path: Path, begin: int, end: int | None, follow: bool = False) -> tuple[int, int | None]:
    """Bytes [begin, end) of a log, extended to the beginning of the first line and the end of the last one: programs
    whose output is buffered write parts of lines. An empty range, unless it is followed to the log's end, and a side
    without a newline within 64 KiB (a progress bar) stay as they are."""
    if begin == 0 and end is None:
        return begin, end
    try:
        with _open_log(path) as file:
            first, size = _data_offset(file), file.seek(0, 2)
            is_empty = max(begin, first) >= (size if end is None else min(end, size))
            if begin > size or (is_empty and not (follow and end is None)):
                return begin, end
            if begin > first:
                start = max(first, begin - _MAX_LINE_BYTES)
                newline = os.pread(file.fileno(), begin - start, start).rfind(b"\n") + 1
                if newline or start == first:
                    begin = start + newline
            if end is not None and end < size:
                text = os.pread(file.fileno(), _MAX_LINE_BYTES, end - 1)
                newline = text.find(b"\n") + 1
                if newline or len(text) < _MAX_LINE_BYTES:
                    end = end - 1 + (newline or len(text))
    except FileNotFoundError:
        pass
    return begin, end


def tail_offset(path: Path, begin: int, end: int | None, count: int) -> int:
    """The offset of the last `count` lines of bytes [begin, end); a last line without newline counts. Reads backwards,
    no more than needed."""
    try:
        with _open_log(path) as file:
            begin = _resume_offset(file, begin)
            size = file.seek(0, 2)
            top = size if end is None else min(end, size)
            if count == 0:
                return max(begin, top)
            position, remaining = top, count
            while position > begin:
                start = max(begin, position - _BLOCK_BYTES)
                file.seek(start)
                block = file.read(position - start)
                at = len(block) - (position == top and block.endswith(b"\n"))  # that newline ends the last line
                while (at := block.rfind(b"\n", 0, at)) >= 0:
                    remaining -= 1
                    if remaining == 0:
                        return start + at + 1
                position = start
    except FileNotFoundError:
        pass
    return begin


def read_lines(path: Path, begin: int, end: int | None, is_finished: Callable[[], bool] | None) -> Iterator[str]:
    """Lines of bytes [begin, end), without newlines; bytes that are not UTF-8 are replaced.

    With `is_finished` the log is followed: new lines are awaited until it returns True.
    """
    position, over = begin, is_finished is None
    rest: list[bytes] = []  # the parts of a line that has not ended, which may be many: each is copied once
    while True:
        start, data = _read_block(path, position, end)
        if start != position and any(rest):  # its end was dropped
            yield b"".join(rest).decode(errors="replace")
            rest = []
        position = start + len(data)
        first, *others = data.split(b"\n")
        rest.append(first)
        for line in others:
            yield b"".join(rest).decode(errors="replace")
            rest = [line]
        if len(data) == _BLOCK_BYTES:
            continue  # there may be more already
        if over or (end is not None and position >= end):
            break
        over = is_finished is None or is_finished()  # if over, read once more: the end may have been written since
        if not data and not over:
            time.sleep(_POLL_S)
    if last := b"".join(rest):
        yield last.decode(errors="replace")


def _read_block(path: Path, position: int, end: int | None) -> tuple[int, bytes]:
    """(offset, data): at most one block, since logs may be larger than memory, from `position`, or from the log's
    beginning if that part was dropped."""
    try:
        with _open_log(path) as file:
            while True:
                start = _resume_offset(file, position)
                file.seek(start)
                data = file.read(_BLOCK_BYTES if end is None else max(0, min(_BLOCK_BYTES, end - start)))
                if _resume_offset(file, start) == start:  # none of it was dropped meanwhile
                    return start, data
    except FileNotFoundError:
        return position, b""


def _open_log(path: Path) -> IO[bytes]:
    """Raises `Refused` if the job has replaced its log."""
    try:
        return _open_unlinked(path)
    except IrregularFile as error:
        raise Refused(f"{path}: {error.strerror}", reason="LogNotReadable") from error


def _open_unlinked(path: Path) -> IO[bytes]:
    """The job may have replaced its log, for example by a FIFO, which would block who reads it, or by a link to a file
    that the job itself cannot read. Raises IrregularFile."""
    return SharedFolder(path.parent).open(path.name)


def _resume_offset(file: IO[bytes], position: int) -> int:
    """The offset to continue at; a log that became shorter was truncated and is read from its beginning."""
    if os.fstat(file.fileno()).st_size < position:
        return 0
    return max(position, _data_offset(file))


def _data_offset(file: IO[bytes]) -> int:
    """The offset of a log's first byte that was not dropped. Moves the file's position."""
    try:
        data = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError:  # empty, or a file system without holes
        return 0
    if data == 0:
        return 0
    block = os.pread(file.fileno(), _BLOCK_BYTES, data)
    return data + len(block) - len(block.lstrip(b"\0"))


def has_log(logs: Path, role: str, index: int, attempt: int) -> bool:
    """Whether the folder `logs` has the log of this attempt, possibly of a replica that was removed since."""
    return f"{role}-{index}.attempt-{attempt}.log" in {path.name for path in logs.glob("*.log")}


def check_attempt(job: TrainingJob, attempt: int) -> None:
    """Raises `NotFound` for an attempt that has not begun."""
    newest = job.status.attempt
    if attempt > newest:
        valid = "0" if newest == 0 else f"0 to {newest}"
        message = f"attempt: must be {valid} for job {job.metadata.name!r}; got {attempt}"
        raise NotFound(message, field="attempt", reason="AttemptNotFound")


def newest_attempt(run_dir: Path, job: TrainingJob, role: str, index: int, follow: bool) -> int:
    """The newest attempt that has a log; with `follow`, an unfinished job's current attempt even without a log."""
    current = job.status.attempt
    newest = newest_log_attempts(run_dir / "logs").get((role, index), current)
    return max(newest, current) if follow and job.status.phase not in _FINISHED_JOB_PHASES else newest


def newest_log_attempts(logs: Path) -> dict[tuple[str, int], int]:
    """By (role, index): the newest attempt that has a log in this folder."""
    newest: dict[tuple[str, int], int] = {}
    for path in logs.glob("*.attempt-*.log"):
        pod, _, attempt = path.name.removesuffix(".log").rpartition(".attempt-")
        role, _, index = pod.rpartition("-")
        if index.isdecimal() and attempt.isdecimal():
            newest[role, int(index)] = max(int(attempt), newest.get((role, int(index)), 0))
    return newest


def is_complete(job: TrainingJob, pods: Iterable[Mapping[str, Any]], attempt: int) -> bool:
    """Whether an attempt's log is complete; `pods` are the replica's pods of that attempt from the daemon's API."""
    if job.status.attempt < attempt:
        return False
    finished = [pod["phase"] in _FINISHED_POD_PHASES for pod in pods]
    if job.status.attempt > attempt or job.status.phase in _FINISHED_JOB_PHASES:
        return all(finished)
    return bool(finished) and finished[0]


@dataclass(slots=True)
class _CachedHeartbeat:
    stamps: tuple[_FileStamp, ...] = (None, None, None)
    heartbeat: Heartbeat | None = None


class HeartbeatReader:
    """The newest heartbeats, by job uid. Called often for every running job, so a file is parsed only if it changed."""

    def __init__(self) -> None:
        self._cache: dict[str, _CachedHeartbeat] = {}

    def read(self, run_dirs: Iterable[tuple[str, Path]], now: float) -> dict[str, Heartbeat]:
        """Heartbeats of these jobs (uid, run folder), with their newest checkpoints; unchanged ones are the same
        objects."""
        self._cache = {
            uid: self._refresh(self._cache.get(uid) or _CachedHeartbeat(), run_dir, ClockReading(now))
            for uid, run_dir in run_dirs
        }
        return {uid: entry.heartbeat for uid, entry in self._cache.items() if entry.heartbeat is not None}

    def _refresh(self, cached: _CachedHeartbeat, run_dir: Path, clock: ClockReading) -> _CachedHeartbeat:
        files = (
            run_dir / "heartbeats" / "rank-0.json",
            run_dir / "checkpoints" / "latest",
            run_dir / "checkpoint.json",
        )
        stamps = tuple(_file_stamp(file) for file in files)
        if stamps != cached.stamps:
            reported, announced, watched = (read_json(file) for file in files)
            checkpoint = newest_checkpoint(announced or None, watched or None) or {}
            cached.heartbeat = parse_heartbeat(reported, checkpoint, clock, cached.heartbeat)
            cached.stamps = stamps
        return cached


def rank_heartbeats(run_dir: Path) -> list[dict[str, Any]]:
    """The last heartbeat of each rank, by rank, without files that cannot be read; invalid numbers are None."""
    found = [_drop_invalid_numbers(read_json(path)) for path in (run_dir / "heartbeats").glob("rank-*.json")]
    return sorted(
        (fields for fields in found if isinstance(fields.get("rank"), int)), key=lambda fields: fields["rank"]
    )


def _drop_invalid_numbers(heartbeat: dict[str, Any]) -> dict[str, Any]:
    numbers = {
        name: None if name in NUMERIC_FIELDS and parse_field(name, value) is None else value
        for name, value in heartbeat.items()
    }
    if "collectives" in heartbeat:
        numbers["collectives"] = parse_collectives(heartbeat["collectives"])
    return numbers


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that is replaced atomically; empty if it is missing or invalid.

    The user's program writes it: only a regular file is opened, and no more is read than a valid object can have.
    """
    from muster.tracing.collect.heartbeat_server import read_json_object
    from muster.tracing.shared_folder import SharedFolder

    return read_json_object(SharedFolder(path.parent), path.name, []) or {}


def _file_stamp(path: Path) -> _FileStamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
