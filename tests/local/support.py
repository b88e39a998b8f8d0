"""Helpers for tests with a daemon: jobs of one shell line, waiting for conditions, processes of a home."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.api import spec
from muster.errors import MusterError
from muster.local.client import LocalClient


def shell_job(name: str, line: str, **changes: Any) -> spec.TrainingJob:
    """A job of one role whose replicas run `sh -c line`; changes: replicas, grace, env, gpus, fields of the spec."""
    replicas, grace, gpus = changes.pop("replicas", 1), changes.pop("grace", 60), changes.pop("gpus", 0)
    env = [{"name": key, "value": value} for key, value in changes.pop("env", {}).items()]
    container: dict[str, Any] = {"name": "main", "command": ["/bin/sh", "-c", line], "env": env}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    role = {
        "name": "trainer",
        "replicas": replicas,
        "template": {"spec": {"containers": [container], "terminationGracePeriodSeconds": grace}},
    }
    body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"roles": [role], **changes}}
    return spec.TrainingJob.model_validate(body)


def container_job(container: dict[str, Any], pod: dict[str, Any] | None = None, **fields: Any) -> spec.TrainingJob:
    """A job of one role with these fields of its container, its pod and its spec."""
    whole = {"name": "main", "command": ["true"], **container}
    role = {"name": "trainer", "template": {"spec": {"containers": [whole], **(pod or {})}}}
    return spec.TrainingJob.model_validate({"metadata": {"name": "job"}, "spec": {"roles": [role], **fields}})


def eventually(condition: Callable[[], Any], timeout_s: float = 600.0) -> Any:
    """The first true result of `condition`; the timeout only ends a test that hangs."""
    until = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > until:
            raise AssertionError(f"not within {timeout_s} s: {condition}")
        time.sleep(0.02)


def has(*texts: str, reason: str = "", field: str = "") -> Callable[[MusterError], bool]:
    """For `pytest.raises(check=...)`: whether an error has this reason, this field and these parts in its message."""
    return lambda error: (
        (not reason or error.reason == reason)
        and (not field or error.field == field)
        and all(text in str(error) for text in texts)
    )


def phase_of(client: LocalClient, name: str) -> str:
    """The current phase of a job."""
    return client.job(name).status.phase


def ended(client: LocalClient, name: str) -> spec.TrainingJob:
    """The job after it has finished."""
    return list(client.watch(name))[-1]


def processes_of(home: Path) -> list[int]:
    """Pids of all processes of a home, as the kernel lists them: daemon, shims, replicas."""
    marker, folder = b"MUSTER_RUN_DIR=" + os.fsencode(home), os.fsencode(home)
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(v.startswith(marker) for v in variables) or any(a.startswith(folder) for a in arguments):
            found.append(int(entry))
    return found


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C until it ends, since Python ignores one that comes during a callback of an import. What it printed as
    errors."""
    while True:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=30)[1]
