"""The rank, attempt and run folder of this process, from torchrun's and Muster's environment variables.

Without torchrun a process is the only rank.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import signal
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from muster_components.counts import is_count
from muster_components.trainer.errors import InputError

DEFAULT_OUTPUT = "muster-run"
_NEVER_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """This process among the ranks of the job. `job` and `job_uid` are empty outside Muster."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    attempt: int
    job: str
    run_dir: Path
    job_uid: str = ""

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which writes console lines, events and `latest`."""
        return self.rank == 0

    @property
    def heartbeat_path(self) -> Path:
        """The newest heartbeat of this rank."""
        return self.run_dir / "heartbeats" / f"rank-{self.rank}.json"

    @property
    def metrics_path(self) -> Path:
        """The metrics of this rank, one line per step."""
        return self.run_dir / "metrics" / f"rank-{self.rank}.jsonl"

    @property
    def compilation_path(self) -> Path:
        """What torch compiled on this rank, one line per compilation or graph break."""
        return self.run_dir / "compilation" / f"rank-{self.rank}.jsonl"

    @property
    def events_path(self) -> Path:
        """Events of the run, written by rank 0."""
        return self.run_dir / "events.jsonl"

    @property
    def checkpoints_dir(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def capture_dir(self) -> Path:
        """The request to profile steps, and the answers of the ranks."""
        return self.run_dir / "capture"

    @property
    def accepts_captures(self) -> bool:
        """Whether a user may request traces while the process runs: only of a job of Muster."""
        return bool(self.job)

    def trace_path(self, start: int, end: int) -> Path:
        """The path of the trace of the steps `start` <= k < `end`."""
        return self.run_dir / "traces" / "spool" / f"rank-{self.rank}.attempt-{self.attempt}.steps-{start}-{end}.json"

    def snapshot_path(self, start: int, end: int) -> Path:
        """The path of the memory snapshot of the steps `start` <= k < `end`."""
        return self.trace_path(start, end).with_suffix(".pickle")


def run_context(environ: Mapping[str, str], output: str | None = None) -> RunContext:
    """The context from the environment; the run folder is $MUSTER_RUN_DIR, else `output`. Raises InputError."""
    world_size = _read_count(environ, "WORLD_SIZE", 1)
    context = RunContext(
        rank=_read_count(environ, "RANK", 0),
        world_size=world_size,
        local_rank=_read_count(environ, "LOCAL_RANK", 0),
        local_world_size=_read_count(environ, "LOCAL_WORLD_SIZE", world_size),
        attempt=_read_count(environ, "MUSTER_ATTEMPT", 0),
        job=environ.get("MUSTER_JOB", ""),
        job_uid=environ.get("MUSTER_JOB_UID", ""),
        run_dir=Path(environ.get("MUSTER_RUN_DIR") or output or DEFAULT_OUTPUT).absolute(),
    )
    if context.rank >= world_size:
        raise InputError(f"RANK must be less than WORLD_SIZE={world_size}; got {context.rank}")
    return context


def _read_count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not is_count(text):
        raise InputError(f"environment variable {name} must be an integer of at least 0; got {text!r}")
    return int(text) if text else default


def require_run_dir(folder: Path) -> None:
    """Create the run folder. Raises InputError if it can never be written, since a run without checkpoints and metrics
    is lost; a full disk may have space again."""
    problem = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _NEVER_WRITABLE:
            problem = error.strerror
    else:
        if not os.access(folder, os.W_OK | os.X_OK):
            problem = "no permission to write, or a read-only file system"
    if problem is not None:
        raise InputError(
            f"the run folder ($MUSTER_RUN_DIR, else --output) must be a folder that can be written; got {folder}: "
            f"{problem}",
            same_on_all_ranks=False,
        )


def install_stack_handler(environ: Mapping[str, str]) -> None:
    """Write the stacks of all threads into the file that the launcher names when it sends SIGQUIT; without one, or if
    it cannot be written, nothing changes."""
    path = environ.get("MUSTER_STACKS_FILE", "")
    if not path:
        return
    with contextlib.suppress(OSError):
        # Unbuffered and never closed: the handler writes to its file descriptor.
        faulthandler.register(signal.SIGQUIT, open(path, "ab", buffering=0), all_threads=True)  # noqa: SIM115


def silence_kineto(environ: MutableMapping[str, str]) -> None:
    """Disable Kineto's log, which writes its own steps as errors to the job's log."""
    environ.setdefault("KINETO_LOG_LEVEL", "99")
