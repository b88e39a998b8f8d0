"""Starts replicas: writes the shim's spec and starts the shim; finds and kills processes.

A process is held by its pidfd, so that no signal reaches another process that got its pid.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.api import spec
from muster.errors import DaemonError
from muster.kinds.trainingjob.arrays import index_of, split_index_key
from muster.local import shim, submissions
from muster.local.environment import (
    JobEnvironmentStore,
    PodAllocation,
    PodIdentity,
    command_line,
    interpreter_environment,
    job_log_limit,
    parse_log_limit,
    pod_environment,
    working_directory,
)
from muster.local.home import Home
from muster.local.pod_folder import PodFolder
from muster.local.run_folder import log_path
from muster.local.store import PodRecord

_LOG_LIMIT_VARIABLE = "MUSTER_LOG_LIMIT"
_DEFAULT_LOG_LIMIT_BYTES = 2**30
_SHIM = str(Path(shim.__file__).resolve())
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """Settings that all replicas of this host share."""

    home: Home
    boot_id: str
    environment: dict[str, str]  # of jobs submitted without one, and of collectors
    umask: int
    collector: tuple[str, ...]  # command line, without its arguments
    drain_s: float = 60.0
    log_limit: int = _DEFAULT_LOG_LIMIT_BYTES

    def pod_folder(self, pod: PodRecord) -> PodFolder:
        """The folder that its shim and the daemon share."""
        return PodFolder(self.home.pod_dir(pod.job_uid, pod.role, pod.index, pod.attempt))

    def run_dir(self, job: spec.TrainingJob) -> Path:
        return self.home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)

    def environment_of(self, job: spec.TrainingJob) -> dict[str, str]:
        """The environment that the job was submitted with. Raises OSError."""
        submitted = JobEnvironmentStore(self.home).load(split_index_key(job.metadata.uid)[0])
        return self.environment if submitted is None else submitted

    def log_file(self, pod: PodRecord, job: spec.TrainingJob) -> Path:
        return log_path(self.run_dir(job), pod.role, pod.index, pod.attempt)


class ShimHandle:
    """A running shim; `popen` if it is a child of this daemon."""

    __slots__ = ("popen", "process", "stop_sent")

    def __init__(self, process: Process, popen: subprocess.Popen[bytes] | None) -> None:
        self.process = process
        self.popen = popen
        self.stop_sent: tuple[float, float] | None = None  # (time, grace) of the last stop request

    def has_exited(self) -> bool:
        return self.popen.poll() is not None if self.popen is not None else self.process.has_exited()

    def wait(self, timeout_s: float) -> None:
        """Return once it has ended, or after the timeout."""
        poll = select.poll()
        poll.register(self.process.fd, select.POLLIN)
        poll.poll(timeout_s * 1000)


def start_shim(context: LaunchContext, pod: PodRecord, job: spec.TrainingJob) -> ShimHandle:
    """Start the shim of a pod. Raises OSError."""
    folder = context.pod_folder(pod)
    context.log_file(pod, job).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if index_of(job) is not None:
        _link_submission(context.run_dir(job))
    folder.write_spec(build_shim_spec(context, pod, job))
    command = [sys.executable, "-I", "-S", _SHIM, str(folder.path)]
    with open(folder.path / "shim.err", "ab") as errors:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", start_new_session=True,
            env={"PATH": context.environment["PATH"]},
        )  # fmt: skip
    return ShimHandle(Process(popen.pid, os.pidfd_open(popen.pid)), popen)


def _link_submission(run_dir: Path) -> None:
    """All indices of an array start from the code that was submitted with it. Raises OSError."""
    link = run_dir / submissions.FOLDER
    if (run_dir.parent.parent / submissions.FOLDER).exists() and not link.is_symlink():
        link.symlink_to(Path("..", "..", submissions.FOLDER))


def build_shim_spec(context: LaunchContext, pod: PodRecord, job: spec.TrainingJob) -> dict[str, Any]:
    """The shim's spec, whose fields shim.py describes. Raises OSError."""
    role = next(role for role in job.spec.roles if role.name == pod.role)
    container = role.template.spec.containers[0]
    allocation = PodAllocation(
        run_dir=str(context.run_dir(job)), devices=pod.devices or (), rank0_port=pod.port, grace_s=pod.grace_s
    )
    identity = PodIdentity(pod.name, pod.role, pod.index, pod.replicas, pod.attempt)
    environment = pod_environment(interpreter_environment(context.environment_of(job), job), job, identity, allocation)
    return {
        "pod": pod.name,
        "argv": command_line(container, environment),
        "env": environment,
        "cwd": working_directory(job, container),
        "log": str(context.log_file(pod, job)),
        "log_limit": job_log_limit(job, context.log_limit),
        "grace_s": pod.grace_s,
        "umask": context.umask,
        "boot_id": context.boot_id,
        "collector": _build_collector_spec(context, pod, allocation, environment)
        if job.spec.trace is not None
        else None,
    }


def _build_collector_spec(
    context: LaunchContext, pod: PodRecord, allocation: PodAllocation, environment: dict[str, str]
) -> dict[str, Any]:
    arguments = ["--run-dir", allocation.run_dir, "--role", pod.role, "--index", str(pod.index)]
    own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    contract = {name: value for name, value in environment.items() if name.startswith("MUSTER_")}
    return {
        "argv": [*context.collector, *arguments],
        "env": context.environment | contract | own | {"CUDA_VISIBLE_DEVICES": ""},
        "cwd": allocation.run_dir,
        "log": str(context.pod_folder(pod).path / "collector.log"),
        "drain_s": context.drain_s,
        "holds_sigterm": True,  # the collector unblocks SIGTERM once it has a handler
    }


def default_log_limit(environ: Mapping[str, str]) -> int:
    """Bytes, for jobs without the annotation. Raises `DaemonError` InvalidLogLimit for an invalid variable."""
    text = environ.get(_LOG_LIMIT_VARIABLE) or str(_DEFAULT_LOG_LIMIT_BYTES)
    limit = parse_log_limit(text)
    if limit is None:
        message = f"{_LOG_LIMIT_VARIABLE}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}"
        raise DaemonError(message, reason="InvalidLogLimit")
    return limit


def boot_id(file: Path | None = None) -> str:
    """An id that changes with every start of this host. Raises `DaemonError`."""
    try:
        return (file or _BOOT_ID).read_text().strip()
    except OSError as error:
        raise DaemonError(f"the daemon requires Linux: {file or _BOOT_ID}: {error.strerror}") from error


def check_platform() -> None:
    """Raises `DaemonError` on a system without pidfds."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        raise DaemonError("the daemon requires Linux 5.4 or newer; submit to a cluster instead")


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class Process:
    """A process by pidfd."""

    pid: int
    fd: int

    @classmethod
    def find(cls, pid: int, started: int | None = None) -> Process | None:
        """The process `pid` if it exists and, if given, started at `started`."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        if started is not None and start_time(pid) != started:
            os.close(fd)
            return None
        return cls(pid, fd)

    def has_exited(self) -> bool:
        """Whether it has ended; a zombie has."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; no error if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, number)

    def close(self) -> None:
        os.close(self.fd)


def kill_matching(matches: Callable[[frozenset[bytes]], bool]) -> int:
    """Kill all processes of this user whose initial environment ("NAME=value" as bytes) matches; returns their number.

    Returns once they have ended, or after 5 s.
    """
    killed: dict[int, Process] = {}
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            known = len(killed)
            for process in _find_matching(matches):
                if process.pid in killed:
                    process.close()
                else:
                    process.send_signal(signal.SIGKILL)
                    killed[process.pid] = process
            if len(killed) == known and all(process.has_exited() for process in killed.values()):
                break
            time.sleep(0.005)
    finally:
        for process in killed.values():
            process.close()
    return len(killed)


def _find_matching(matches: Callable[[frozenset[bytes]], bool]) -> Iterator[Process]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            process = Process.find(int(entry.name))
        except OSError:
            continue
        if process is None:
            continue
        try:
            variables = frozenset(Path(entry.path, "environ").read_bytes().split(b"\0"))
        except OSError:
            variables = frozenset()
        if matches(variables):
            yield process
        else:
            process.close()
