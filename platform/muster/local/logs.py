"""The logs of replicas: where they lie, their tail, and their lines between two times.

Lines carry no time. The shim notes how long the log was just before and after it grew; from that `since` and `until`
follow, to about a second.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

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


def begin_of_last(path: Path, begin: int, end: int | None, count: int) -> int:
    """Where the last `count` lines of bytes [begin, end) begin; a last line without its newline is one, too. Reads
    backwards, no more than it has to."""
    try:
        with open(path, "rb") as file:
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


def lines(path: Path, begin: int, end: int | None, ended: Callable[[], bool] | None) -> Iterator[str]:
    """Lines of bytes [begin, end), without their newline; bytes that are no UTF-8 are replaced.

    With `ended` the log is followed: new lines are waited for until `ended()` says that no more will come.
    """
    position, rest, over = begin, b"", ended is None
    while True:
        data = _block(path, position, end)
        position += len(data)
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
        if len(data) == _BLOCK_BYTES:
            continue  # there may be more already
        if over or (end is not None and position >= end):
            break
        over = ended is None or ended()  # then once more: what was written before the end is still read
        if not data and not over:
            time.sleep(_POLL_S)
    if rest:
        yield rest.decode(errors="replace")


def _block(path: Path, position: int, end: int | None) -> bytes:
    """At most a block of what is there: logs may be larger than memory."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            return file.read(_BLOCK_BYTES if end is None else max(0, min(_BLOCK_BYTES, end - position)))
    except FileNotFoundError:
        return b""
