"""The rank processes of one pod: started, passed on, stopped.

What they write passes through the launcher line by line, so that lines of several ranks do not mix (Python writes a
line in pieces when unbuffered); every rank but 0 gets `[r3] ` before each line.
Every rank leads a process group, so that SIGTERM reaches the rank alone (its data loader workers must live until it
has saved its checkpoint) and SIGKILL all of its group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

MAX_LINE_BYTES = 64 * 1024
FLUSH_DELAY_S = 0.1
"""What rank 0 wrote without a newline (a progress bar) is passed on after so long."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank is gone. `code` as a shell says it: 128 + signal when a signal ended it. `at`: monotonic seconds."""

    rank: int
    code: int
    at: float


@dataclass(slots=True)
class RankProcess:
    """One running rank."""

    rank: int
    process: subprocess.Popen[bytes]
    error_file: str
    last_line: str = ""
    reader: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether its end has not been seen yet."""
        return self.process.returncode is None

    def terminate(self) -> None:
        """Ask it to stop."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, and what it started in its group."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def drain(self, timeout_s: float) -> None:
        """Wait until what it wrote has been passed on (a grandchild may hold the pipe open for ever)."""
        if self.reader is not None:
            self.reader.join(timeout_s)


def start_rank(
    rank: int, command: Sequence[str], environ: Mapping[str, str], on_exit: Callable[[RankExited], None]
) -> RankProcess:
    """Start one rank; `ended` is called from another thread when it is gone. Raises OSError if it cannot start."""
    process = subprocess.Popen(
        list(command),
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        process_group=0,
    )
    assert process.stdout is not None
    started = RankProcess(rank, process, environ.get("TORCHELASTIC_ERROR_FILE", ""))
    started.reader = threading.Thread(
        target=_forward_output, args=(started, process.stdout), name=f"log-{rank}", daemon=True
    )
    started.reader.start()
    threading.Thread(target=_wait_for_exit, args=(started, on_exit), name=f"wait-{rank}", daemon=True).start()
    return started


def _wait_for_exit(rank: RankProcess, on_exit: Callable[[RankExited], None]) -> None:
    code = rank.process.wait()
    on_exit(RankExited(rank.rank, 128 - code if code < 0 else code, time.monotonic()))


def _forward_output(rank: RankProcess, pipe: IO[bytes]) -> None:
    prefix = f"[r{rank.rank}] ".encode() if rank.rank else b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    rest = b""
    while True:
        quiet = bool(rest) and not prefix and not poll.poll(FLUSH_DELAY_S * 1000)
        chunk = b"" if quiet else os.read(pipe.fileno(), MAX_LINE_BYTES)
        at_end = not chunk and not quiet
        *lines, rest = (rest + chunk).split(b"\n")
        if rest and (at_end or len(rest) > MAX_LINE_BYTES):
            lines, rest = [*lines, rest], b""
        if lines:
            write_output(b"".join(prefix + line + b"\n" for line in lines))
            rank.last_line = next((text for line in reversed(lines) if (text := _visible_text(line))), rank.last_line)
        if quiet:
            write_output(rest)
            rest = b""
        if at_end:
            return


def _visible_text(line: bytes) -> str:
    """What a terminal would show of a line: the part after the last carriage return."""
    return line.decode(errors="replace").rstrip().rpartition("\r")[2].strip()


def write_output(text: bytes) -> None:
    """Write to the pod's log, past Python's buffers: one write keeps lines whole. A log on a full disk loses lines;
    the ranks go on."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(sys.stdout.fileno(), text) :]
