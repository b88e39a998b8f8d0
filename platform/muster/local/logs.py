"""The logs of replicas: where they lie, their tail, and their lines between two times.

A log has a limit: its shim punches a hole where the oldest part was, so that what is left stays at its place.
Lines carry no time. The shim notes how long the log was just before and after it grew; from that `since` and `until`
follow, to about a second.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

TAIL_BYTES = 4096
_POLL_S = 0.2
_BLOCK_BYTES = 2**18


def log_path(run_dir: Path, role: str, index: int, attempt: int) -> Path:
    """The log of one pod (docs/run-folder.md)."""
    return run_dir / "logs" / f"{role}-{index}.attempt-{attempt}.log"


def tail(path: Path) -> str:
    """The last 4 KiB, beginning with a whole line where there is one; empty without a log."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read(TAIL_BYTES)
    except OSError:
        return ""
    if size > TAIL_BYTES and b"\n" in data[:-1]:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def byte_range(times: list[tuple[float, int]], since: float | None, until: float | None) -> tuple[int, int | None]:
    """Bytes [begin, end) of a log that may have been written from `since` to `until`; end None: all there is.

    `times` are (Unix time, bytes by then). Never leaves out a line of the asked time, may show up to a second more.
    """
    stamps = [stamp for stamp, _ in times]
    begin = 0
    if since is not None:
        earlier = bisect_right(stamps, since)
        begin = times[earlier - 1][1] if earlier else 0
    end = None
    if until is not None:
        later = bisect_left(stamps, until)
        end = times[later][1] if later < len(times) else None
    return begin, end


def tail_offset(path: Path, begin: int, end: int | None, count: int) -> int:
    """Where the last `count` lines of bytes [begin, end) begin; a last line without its newline is one, too. Reads
    backwards, no more than it has to."""
    try:
        with open(path, "rb") as file:
            begin = max(begin, _data_offset(file))
            size = file.seek(0, 2)
            top = size if end is None else min(end, size)
            if count == 0:
                return max(begin, top)
            position, left = top, count
            while position > begin:
                start = max(begin, position - _BLOCK_BYTES)
                file.seek(start)
                block = file.read(position - start)
                at = len(block) - (position == top and block.endswith(b"\n"))  # that one ends the last line
                while (at := block.rfind(b"\n", 0, at)) >= 0:
                    left -= 1
                    if left == 0:
                        return start + at + 1
                position = start
    except FileNotFoundError:
        pass
    return begin


def read_lines(path: Path, begin: int, end: int | None, is_finished: Callable[[], bool] | None) -> Iterator[str]:
    """Lines of bytes [begin, end), without their newline; bytes that are no UTF-8 are replaced.

    With `ended` the log is followed: new lines are waited for until `ended()` says that no more will come.
    """
    position, rest, over = begin, b"", is_finished is None
    while True:
        start, data = _read_block(path, position, end)
        if start != position and rest:  # its end was dropped
            rest += b"\n"
        position = start + len(data)
        *total, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in total)
        if len(data) == _BLOCK_BYTES:
            continue  # there may be more already
        if over or (end is not None and position >= end):
            break
        over = is_finished is None or is_finished()  # then once more: what was written before the end is still read
        if not data and not over:
            time.sleep(_POLL_S)
    if rest:
        yield rest.decode(errors="replace")


def _read_block(path: Path, position: int, end: int | None) -> tuple[int, bytes]:
    """At most a block of what is there, since logs may be larger than memory, and where it begins: at `position`, or
    where the log begins now if that was dropped."""
    try:
        with open(path, "rb") as file:
            while True:
                start = _resume_offset(file, position)
                file.seek(start)
                data = file.read(_BLOCK_BYTES if end is None else max(0, min(_BLOCK_BYTES, end - start)))
                if _resume_offset(file, start) == start:  # nothing of it was dropped meanwhile
                    return start, data
    except FileNotFoundError:
        return position, b""


def _resume_offset(file: BinaryIO, position: int) -> int:
    """Where to read on; a log that is shorter than it was has been begun anew."""
    if os.fstat(file.fileno()).st_size < position:
        return 0
    return max(position, _data_offset(file))


def _data_offset(file: BinaryIO) -> int:
    """Where a log begins whose oldest part was dropped; 0 of any other. Moves the file's position."""
    try:
        data = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError:  # empty, or a file system without holes
        return 0
    if data == 0:
        return 0
    block = os.pread(file.fileno(), _BLOCK_BYTES, data)
    return data + len(block) - len(block.lstrip(b"\0"))
