"""Starts replicas: writes the shim's spec and starts the shim."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.api import spec
from muster.errors import DaemonError
from muster.local import shim
from muster.local.annotations import job_log_limit, parse_log_limit
from muster.local.environment import (
    JobEnvironmentStore,
    PodAllocation,
    PodIdentity,
    command_line,
    interpreter_environment,
    pod_environment,
    working_directory,
)
from muster.local.home import Home
from muster.local.pod_folder import PodFolder
from muster.local.processes import Process
from muster.local.records import PodRecord
from muster.local.run_folder import log_path

_LOG_LIMIT_VARIABLE = "MUSTER_LOG_LIMIT"
_DEFAULT_LOG_LIMIT_BYTES = 2**30
_SHIM = str(Path(shim.__file__).resolve())


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
        """The job's run folder."""
        return self.home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)

    def environment_of(self, job: spec.TrainingJob) -> dict[str, str]:
        """The environment that the job was submitted with. Raises OSError."""
        submitted = JobEnvironmentStore(self.home).load(job.metadata.uid)
        return self.environment if submitted is None else submitted

    def log_file(self, pod: PodRecord, job: spec.TrainingJob) -> Path:
        """The pod's log."""
        return log_path(self.run_dir(job), pod.role, pod.index, pod.attempt)


class ShimHandle:
    """A running shim; `popen` if it is a child of this daemon."""

    __slots__ = ("popen", "process", "stop_sent")

    def __init__(self, process: Process, popen: subprocess.Popen[bytes] | None) -> None:
        self.process = process
        self.popen = popen
        self.stop_sent: tuple[float, float] | None = None  # (time, grace) of the last stop request

    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self.popen.poll() is not None if self.popen is not None else self.process.has_exited()


def start_shim(context: LaunchContext, pod: PodRecord, job: spec.TrainingJob) -> ShimHandle:
    """Start the shim of a pod. Raises OSError."""
    folder = context.pod_folder(pod)
    context.log_file(pod, job).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.write_spec(build_shim_spec(context, pod, job))
    command = [sys.executable, "-I", "-S", _SHIM, str(folder.path)]
    with open(folder.path / "shim.err", "ab") as errors:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", start_new_session=True,
            env={"PATH": context.environment["PATH"]},
        )  # fmt: skip
    return ShimHandle(Process(popen.pid, os.pidfd_open(popen.pid)), popen)


def build_shim_spec(context: LaunchContext, pod: PodRecord, job: spec.TrainingJob) -> dict[str, Any]:
    """The shim's spec, whose fields shim.py describes. Raises OSError."""
    role = next(role for role in job.spec.roles if role.name == pod.role)
    container = role.template.spec.containers[0]
    allocation = PodAllocation(run_dir=str(context.run_dir(job)), devices=pod.devices or (), rank0_port=pod.port)
    identity = PodIdentity(pod.name, pod.role, pod.index, pod.replicas, pod.attempt)
    environment = pod_environment(interpreter_environment(context.environment_of(job), job), job, identity, allocation)
    return {
        "pod": pod.name,
        "argv": command_line(container, environment),
        "env": environment,
        "cwd": working_directory(job, container),
        "log": str(context.log_file(pod, job)),
        "log_limit": job_log_limit(job, context.log_limit),
        "grace_s": role.template.spec.termination_grace_period_seconds,
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
