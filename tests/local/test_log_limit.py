"""The limit of logs: the oldest part is dropped, with a line in the log, and readers continue."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.local.support import ended, eventually, has, shell_job

from muster.api import spec
from muster.client import LogOptions
from muster.errors import InvalidSpec
from muster.local import shim
from muster.local.client import LocalClient
from muster.local.environment import job_log_limit
from muster.local.home import open_home
from muster.local.launcher import LaunchContext, build_shim_spec
from muster.local.pod_folder import PodFolder
from muster.local.run_folder import byte_range, read_lines, tail_offset
from muster.local.store import PodRecord

MI = 2**20
LINES = [f"line {number:06d} {'x' * 1000}" for number in range(5000)]


def with_limit(job: spec.TrainingJob, limit: str) -> spec.TrainingJob:
    metadata = job.metadata.model_copy(update={"annotations": {"muster.dev/log-limit": limit}})
    return job.model_copy(update={"metadata": metadata})


def shim_with_log(folder: Path, limit: int) -> shim.Shim:
    """A shim whose replica has written all lines."""
    folder.mkdir(exist_ok=True)
    (folder / "log").write_text("".join(f"{line}\n" for line in LINES))
    return shim.Shim(str(folder), {"log": str(folder / "log"), "log_limit": limit})


def test_the_oldest_part_is_replaced_by_one_line_and_the_rest_keeps_its_offsets(tmp_path: Path) -> None:
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    size = (tmp_path / "log").stat().st_size
    replica_shim._record_log_size()
    status = (tmp_path / "log").stat()
    assert (status.st_size, status.st_blocks * 512 <= 2 * MI) == (size, True)
    first, *rest = read_lines(tmp_path / "log", 0, None, None)
    assert first.startswith("muster: the first ")
    assert rest == LINES[-len(rest) :]
    assert MI < sum(len(line) + 1 for line in rest) <= 3 * MI // 2
    assert list(read_lines(tmp_path / "log", tail_offset(tmp_path / "log", 0, None, 3), None, None)) == LINES[-3:]
    everything = tail_offset(tmp_path / "log", 0, None, 10**6)
    assert everything == size - sum(len(line) + 1 for line in (first, *rest)), "the dropped part is not searched"
    assert list(read_lines(tmp_path / "log", everything, None, None)) == [first, *rest]


def test_a_line_that_is_written_while_the_size_is_read_is_found_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica_shim = shim_with_log(tmp_path, 0)
    clock = iter((10.0, 11.0))
    monkeypatch.setattr(shim, "time", SimpleNamespace(time=lambda: next(clock)))
    replica_shim._record_log_size()
    size = (tmp_path / "log").stat().st_size
    sizes = PodFolder(tmp_path).log_sizes()
    assert byte_range(sizes, 10.5, None) == (0, None), "it may have been written at 10.6"
    assert byte_range(sizes, 11.5, None) == (size, None)
    assert byte_range(sizes, None, 10.5) == (0, None)
    assert byte_range(sizes, None, 9.5) == (0, size)


def test_a_follower_in_the_dropped_part_continues_with_the_rest(tmp_path: Path) -> None:
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    follower = read_lines(tmp_path / "log", 0, None, lambda: True)
    assert [next(follower) for _ in range(3)] == LINES[:3]
    replica_shim._record_log_size()
    seen = list(follower)
    (dropped_at,) = [number for number, line in enumerate(seen) if line.startswith("muster: the first ")]
    assert seen[dropped_at + 1 :] == LINES[-(len(seen) - dropped_at - 1) :]
    assert not any("\0" in line for line in seen)


def test_without_hole_punching_the_whole_log_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim, "_punch", lambda file, length: False)
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    (tmp_path / shim.TIMES).write_text("1.0 5\n")
    replica_shim._record_log_size()
    with open(tmp_path / "log", "a") as file:
        file.write("continues\n")
    dropped, last = read_lines(tmp_path / "log", 4 * MI, None, None)  # a follower with a larger offset
    assert (dropped.startswith("muster: "), last) == (True, "continues")


def test_a_log_that_its_job_truncated_is_read_by_time_and_limited_again(tmp_path: Path) -> None:
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    replica_shim._record_log_size()
    truncated_at = time.time()
    (tmp_path / "log").write_text("after\n")
    replica_shim._record_log_size()
    assert byte_range(PodFolder(tmp_path).log_sizes(), truncated_at, None) == (0, None)
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in LINES[:3000]))
    replica_shim._record_log_size()
    assert (tmp_path / "log").stat().st_blocks * 512 <= 2 * MI


def test_a_log_that_is_cut_behind_its_dropped_part_keeps_its_lines(tmp_path: Path) -> None:
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    replica_shim._record_log_size()
    before = list(read_lines(tmp_path / "log", 0, None, None))
    os.truncate(tmp_path / "log", (tmp_path / "log").stat().st_size - 500 * (len(LINES[0]) + 1))
    replica_shim._record_log_size()
    assert list(read_lines(tmp_path / "log", 0, None, None)) == before[:-500]


def test_a_hole_is_punched_with_a_libc_without_fallocate64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = SimpleNamespace(fallocate=ctypes.CDLL(None, use_errno=True).fallocate)
    monkeypatch.setattr(ctypes, "CDLL", lambda *names, **options: libc)
    replica_shim = shim_with_log(tmp_path, 2 * MI)
    replica_shim._record_log_size()
    assert (tmp_path / "log").stat().st_blocks * 512 <= 2 * MI


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("1Mi", MI), ("10Gi", 10 * 2**30)])
def test_the_annotation_sets_the_limit_of_a_job(text: str, limit: int) -> None:
    assert job_log_limit(with_limit(shell_job("a", "true"), text), 5) == limit
    assert job_log_limit(shell_job("a", "true"), 5) == 5


@pytest.mark.parametrize(("annotation", "limit"), [(None, 5 * MI), ("2Mi", 2 * MI), ("0", 0)])
def test_the_shim_gets_the_limit_of_the_annotation_else_that_of_the_daemon(
    home: Path, annotation: str | None, limit: int
) -> None:
    context = LaunchContext(open_home(home), "boot", {"PATH": "/bin"}, 0o022, ("/bin/true",), log_limit=5 * MI)
    job = shell_job("a", "true")
    job = job if annotation is None else with_limit(job, annotation)
    pod = PodRecord("a-trainer-0-x", "uid", "trainer", 0, 1, 0, "n1", "local", 20000, 0)
    assert build_shim_spec(context, pod, job)["log_limit"] == limit


@pytest.mark.parametrize("text", ["", "much", "1Ki", "-1"])
def test_an_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, check=has(field="metadata.annotations[muster.dev/log-limit]")):
        job_log_limit(with_limit(shell_job("a", "true"), text), 5)


@pytest.mark.slow
def test_a_log_that_exceeds_its_limit_can_be_followed_to_its_end(home: Path, tmp_path: Path) -> None:
    client = LocalClient.up(home, idle_s=60)
    text = "x" * 1000
    line = f"echo begins; while [ ! -e {tmp_path}/begin ]; do sleep 0.1; done; i=0;"
    line += f"while [ ! -e {tmp_path}/go ] || [ $i -lt 4000 ]; do echo $i {text}; i=$((i+1)); done; echo last"
    client.submit(with_limit(shell_job("prints", line), "1Mi"))
    follower = client.log_lines("prints", "default", "trainer", 0, LogOptions(follow=True))
    assert next(follower) == "begins"
    (tmp_path / "begin").touch()
    (log,) = eventually(lambda: list(client.run_dir("prints").glob("logs/*.log")))
    eventually(lambda: os.stat(log).st_size > 3 * MI and os.stat(log).st_blocks * 512 < os.stat(log).st_size // 2)
    (tmp_path / "go").touch()
    seen = list(follower)
    assert seen[-1] == "last"
    assert any(line.startswith("muster: the first ") for line in seen)
    assert not any("\0" in line for line in seen)
    assert ended(client, "prints").status.phase == "Succeeded"
    whole = list(client.log_lines("prints", "default", "trainer", 0))
    assert (whole[0].startswith("muster: the first "), whole[-1]) == (True, "last")
