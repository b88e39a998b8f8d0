"""On a full disk jobs can be stopped, and their status reports that logs cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, phase_of, processes_of, shell_job

from muster.api import spec
from muster.errors import ClusterError
from muster.local.client import LocalClient
from muster.workload.conditions import find_condition

pytestmark = pytest.mark.slow
WRITER = "while :; do yes; sleep 0.05; done"  # `yes` exits when a write fails


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A home on a separate disk of 16 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this host does not allow a mount")
    yield disk
    for pid in processes_of(disk):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    with suppress(OSError), open(disk / "fill", "ab", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def is_full(disk: Path) -> bool:
    return os.statvfs(disk).f_bfree == 0


def log_condition(client: LocalClient, name: str) -> spec.Condition | None:
    return find_condition(client.job(name).status, "LogsWritable")


def muster(disk: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MUSTER_HOME": str(disk)}
    command = [sys.executable, "-c", "import muster.cli; muster.cli.main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_jobs_are_cancelled_suspended_and_deleted_while_a_log_keeps_the_disk_full(disk: Path, tmp_path: Path) -> None:
    client = LocalClient.up(disk, idle_s=600)
    for name in ("cancelled", "suspended", "deleted"):
        client.submit(shell_job(name, "exec sleep 600", replicas=2))
        eventually(lambda name=name: phase_of(client, name) == "Running")  # type: ignore[misc]
    assert log_condition(client, "cancelled") is None
    client.submit(shell_job("writer", WRITER))
    eventually(lambda: is_full(disk))
    condition = eventually(lambda: log_condition(client, "cancelled"))
    assert (condition.status, condition.reason) == ("False", "DiskFull")
    assert "logs cannot be written" in muster(disk, "describe", "cancelled").stdout
    (tmp_path / "job.yaml").write_text(
        "{apiVersion: muster.dev/v1alpha1, kind: TrainingJob, metadata: {name: late}, spec: {roles: [{name: a, "
        "template: {spec: {containers: [{name: main, command: ['true']}]}}}]}}"
    )
    refused = muster(disk, "submit", str(tmp_path / "job.yaml"), "--json")
    assert (refused.returncode, '"reason": "StoreUnwritable"' in refused.stderr) == (4, True)
    result = muster(disk, "cancel", "cancelled")
    assert (result.returncode, result.stderr) == (0, "")
    result = muster(disk, "suspend", "suspended")
    assert (result.returncode, result.stderr) == (0, "")
    assert muster(disk, "delete", "job", "deleted").returncode == 0
    assert ended(client, "cancelled").status.phase == "Cancelled"
    eventually(lambda: phase_of(client, "suspended") == "Suspended")
    eventually(lambda: "deleted" not in [job.metadata.name for job in client.jobs()])
    assert phase_of(client, "writer") == "Running"
    eventually(lambda: is_full(disk))
    client.cancel("writer")
    assert ended(client, "writer").status.phase == "Cancelled"


def test_a_daemon_that_starts_on_a_full_disk_can_cancel_a_job(disk: Path) -> None:
    client = LocalClient.up(disk, idle_s=600)
    client.submit(shell_job("goes", "exec sleep 600"))
    eventually(lambda: phase_of(client, "goes") == "Running")
    daemon = client.status()["pid"]
    os.kill(daemon, signal.SIGTERM)  # its replicas go on; unlike a kill it removes the write-ahead log
    eventually(lambda: not Path(f"/proc/{daemon}").exists())
    fill(disk)
    assert is_full(disk)
    again = LocalClient.connect(disk)
    again.cancel("goes")
    assert ended(again, "goes").status.phase == "Cancelled"


def test_jobs_are_accepted_again_after_space_was_freed(disk: Path) -> None:
    client = LocalClient.up(disk, idle_s=600)
    client.submit(shell_job("runs", "exec sleep 600"))
    eventually(lambda: phase_of(client, "runs") == "Running")
    fill(disk)
    with pytest.raises(ClusterError) as refused:
        client.submit(shell_job("late", "true"))
    assert refused.value.reason == "StoreUnwritable"
    assert log_condition(client, "runs") is not None
    (disk / "fill").unlink()
    assert log_condition(client, "runs") is None
    client.submit(shell_job("late", "true"))
    assert ended(client, "late").status.phase == "Succeeded"
