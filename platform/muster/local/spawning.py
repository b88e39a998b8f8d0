"""How a replica is started: what its shim is told to run, and the shim itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster import spec
from muster.local import shim
from muster.local.environment import PodIdentity, Slot, command_line, pod_environment
from muster.local.home import Home
from muster.local.job_environments import JobEnvironments
from muster.local.log_limits import DEFAULT_BYTES, limit_of
from muster.local.logs import log_path
from muster.local.pod_folder import PodFolder
from muster.local.processes import Process
from muster.local.records import PodRecord
from muster.local.submitter import interpreter_environment, working_directory

_SHIM = str(Path(shim.__file__).resolve())


@dataclass(frozen=True, slots=True)
class Host:
    """What every replica of this host shares."""

    home: Home
    boot_id: str
    environment: dict[str, str]  # of jobs without one of their own, and of collectors
    umask: int
    collector: tuple[str, ...]  # command line, without its arguments
    drain_s: float = 60.0
    log_limit: int = DEFAULT_BYTES

    def folder(self, pod: PodRecord) -> PodFolder:
        """What its shim and the daemon share."""
        return PodFolder(self.home.pod(pod.job_uid, pod.role, pod.index, pod.attempt))

    def run_dir(self, job: spec.TrainingJob) -> Path:
        """The job's run folder."""
        return self.home.run_dir(job.metadata.namespace or "default", job.metadata.name, job.metadata.uid)

    def environment_of(self, job: spec.TrainingJob) -> dict[str, str]:
        """What its submitter's environment gives the job. Raises OSError."""
        own = JobEnvironments(self.home).of(job.metadata.uid)
        return self.environment if own is None else own

    def log(self, pod: PodRecord, job: spec.TrainingJob) -> Path:
        """What the pod writes."""
        return log_path(self.run_dir(job), pod.role, pod.index, pod.attempt)


class Watch:
    """A shim that lives, as far as we know. `popen` when it is our own child."""

    __slots__ = ("popen", "process", "told")

    def __init__(self, process: Process, popen: subprocess.Popen[bytes] | None) -> None:
        self.process = process
        self.popen = popen
        self.told: tuple[float, float] | None = None  # (asked at, grace) of the stop it was told

    def ended(self) -> bool:
        """Whether it is gone."""
        return self.popen.poll() is not None if self.popen is not None else self.process.ended()


def spawn(host: Host, pod: PodRecord, job: spec.TrainingJob) -> Watch:
    """Start the shim of a pod. Raises OSError."""
    folder = host.folder(pod)
    host.log(pod, job).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.write_spec(what_to_run(host, pod, job))
    command = [sys.executable, "-I", "-S", _SHIM, str(folder.path)]
    with open(folder.path / "shim.err", "ab") as errors:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/", start_new_session=True,
            env={"PATH": host.environment["PATH"]},
        )  # fmt: skip
    return Watch(Process(popen.pid, os.pidfd_open(popen.pid)), popen)


def what_to_run(host: Host, pod: PodRecord, job: spec.TrainingJob) -> dict[str, Any]:
    """The shim's spec (shim.py tells its fields). Raises OSError."""
    role = next(role for role in job.spec.roles if role.name == pod.role)
    container = role.template.spec.containers[0]
    slot = Slot(run_dir=str(host.run_dir(job)), devices=pod.devices or (), rank0_port=pod.port)
    identity = PodIdentity(pod.name, pod.role, pod.index, pod.replicas, pod.attempt)
    environment = pod_environment(interpreter_environment(host.environment_of(job), job), job, identity, slot)
    return {
        "pod": pod.name,
        "argv": command_line(container, environment),
        "env": environment,
        "cwd": working_directory(job, container),
        "log": str(host.log(pod, job)),
        "log_limit": limit_of(job, host.log_limit),
        "grace_s": role.template.spec.termination_grace_period_seconds,
        "umask": host.umask,
        "boot_id": host.boot_id,
        "collector": _collector(host, pod, slot, environment) if job.spec.trace is not None else None,
    }


def _collector(host: Host, pod: PodRecord, slot: Slot, environment: dict[str, str]) -> dict[str, Any]:
    arguments = ["--run-dir", slot.run_dir, "--role", pod.role, "--index", str(pod.index)]
    own = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    contract = {name: value for name, value in environment.items() if name.startswith("MUSTER_")}
    return {
        "argv": [*host.collector, *arguments],
        "env": host.environment | contract | own | {"CUDA_VISIBLE_DEVICES": ""},
        "cwd": slot.run_dir,
        "log": str(host.folder(pod).path / "collector.log"),
        "drain_s": host.drain_s,
        "holds_sigterm": True,  # it unblocks the signal itself, once it has a handler
    }
