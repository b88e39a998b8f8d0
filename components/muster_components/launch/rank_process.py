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
from pathlib import Path
from typing import IO

from muster_components.trainer.checkpoint_memory import MEMORY_VARIABLE, memory_name

MAX_LINE_BYTES = 64 * 1024
MAX_LOG_COPY_BYTES = 64 << 20
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
    stacks_file: str = ""
    reader: threading.Thread | None = None
    exited_at: float | None = None
    """When it ended: Unix seconds."""
    memory: int | None = None
    """File descriptor of the memory for its checkpoints, which outlives it; None if there is none."""

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def drain(self, timeout_s: float) -> None:
        """Wait until its output has been forwarded (a grandchild may keep the pipe open)."""
        if self.reader is not None:
            self.reader.join(timeout_s)


def start_rank(
    rank: int,
    command: Sequence[str],
    environ: Mapping[str, str],
    on_exit: Callable[[RankExited], None],
    inherited: tuple[int, ...] = (),
) -> RankProcess:
    """Start one rank, with these file descriptors; `on_exit` is called in another thread when it has ended. Raises
    OSError if it cannot start."""
    memory = _create_memory(rank)
    environment = dict(environ) if memory is None else {**environ, MEMORY_VARIABLE: str(memory)}
    process = subprocess.Popen(
        list(command),
        env=environment,
        pass_fds=inherited if memory is None else (*inherited, memory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        process_group=0,
    )
    assert process.stdout is not None
    started = RankProcess(
        rank,
        process,
        environ.get("TORCHELASTIC_ERROR_FILE", ""),
        stacks_file=environ.get("MUSTER_STACKS_FILE", ""),
        memory=memory,
    )
    started.reader = threading.Thread(
        target=_forward_output, args=(started, process.stdout), name=f"log-{rank}", daemon=True
    )
    started.reader.start()
    threading.Thread(target=_wait_for_exit, args=(started, on_exit), name=f"wait-{rank}", daemon=True).start()
    return started


def _create_memory(rank: int) -> int | None:
    """An empty file in memory, charged to this pod; None where the system has none."""
    try:
        return os.memfd_create(memory_name(rank), os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        return None


def _wait_for_exit(rank: RankProcess, on_exit: Callable[[RankExited], None]) -> None:
    code = rank.process.wait()
    rank.exited_at = time.time()
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


class LogCopy:
    """A copy of the pod's log in the run folder, which a collector stores: Kubernetes deletes a pod's log with the pod.
    At `limit` bytes the older three quarters are dropped. On a full disk lines are lost."""

    def __init__(self, path: Path, limit: int = MAX_LOG_COPY_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._file: int | None = None
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def write(self, text: bytes) -> None:
        """Append; errors are ignored."""
        if self._file is None:
            return
        with self._lock, contextlib.suppress(OSError):
            size = os.fstat(self._file).st_size
            if size + len(text) > self._limit:
                skipped = max(0, size - self._limit // 4)
                kept = os.pread(self._file, self._limit // 4, skipped)
                kept = kept[kept.find(b"\n") + 1 :] if skipped else kept
                os.ftruncate(self._file, 0)
                dropped = size - len(kept)
                notice = f"muster: {dropped} bytes of this log were dropped; the limit is {self._limit}\n"
                text = notice.encode() + kept + text
            os.write(self._file, text)


_copies: list[LogCopy] = []


def copy_output(environ: Mapping[str, str]) -> None:
    """Copy what is written from now on into the run folder's logs, on Kubernetes: on one host that file is the pod's
    log itself."""
    run_dir, role, index, attempt = (
        environ.get(f"MUSTER_{name}", "") for name in ("RUN_DIR", "ROLE", "REPLICA", "ATTEMPT")
    )
    if run_dir and role and index and "MUSTER_FAILURE_FILE" not in environ:
        _copies.append(LogCopy(Path(run_dir) / "logs" / f"{role}-{index}.attempt-{attempt or 0}.log"))


def write_output(text: bytes) -> None:
    """Write to the pod's log without Python's buffers, so that lines are not split. On a full disk lines are lost."""
    for copy in _copies:
        copy.write(text)
    with contextlib.suppress(OSError):
        while text:
            text = text[os.write(sys.stdout.fileno(), text) :]
