"""The rank processes of one pod: start them, forward their output, stop them.

The launcher forwards output line by line, so that lines of several ranks do not mix (unbuffered Python writes a line in
parts); lines of all ranks except 0 have a prefix such as `[r3] `. Each rank has a process group, so that SIGTERM
reaches only the rank (its data loader workers must live until it has saved a checkpoint), and SIGKILL the whole group.
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
"""Delay after which output of rank 0 without a newline (a progress bar) is forwarded."""


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank has ended. `code`: as in a shell, 128 + signal if a signal ended it. `at`: monotonic seconds."""

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
        """Whether its exit has not been observed yet."""
        return self.process.returncode is None

    def terminate(self) -> None:
        """Send SIGTERM to the rank."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the rank and its process group."""
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def drain(self, timeout_s: float) -> None:
        """Wait until its output has been forwarded (a grandchild may keep the pipe open)."""
        if self.reader is not None:
            self.reader.join(timeout_s)


def start_rank(
    rank: int, command: Sequence[str], environ: Mapping[str, str], on_exit: Callable[[RankExited], None]
) -> RankProcess:
    """Start one rank; `on_exit` is called in another thread when it has ended. Raises OSError if it cannot start."""
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
    """The part of a line that a terminal shows: after the last carriage return."""
    return line.decode(errors="replace").rstrip().rpartition("\r")[2].strip()


def write_output(text: bytes) -> None:
    """Write to the pod's log without Python's buffers, so that lines are not split. On a full disk lines are lost."""
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(sys.stdout.fileno(), text) :]
