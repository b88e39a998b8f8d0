"""Logs have a limit: the oldest part goes, the log says so, and readers go on."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.local.small import ended, eventually, shell_job

from muster import spec
from muster.errors import InvalidSpec
from muster.local import shim
from muster.local.annotations import job_log_limit
from muster.local.client import LocalClient
from muster.local.home import open_home
from muster.local.launcher import LaunchContext, build_shim_spec
from muster.local.records import PodRecord
from muster.local.run_folder import read_lines, tail_offset
from muster.log_options import LogOptions

MI = 2**20
LINES = [f"line {number:06d} {'x' * 1000}" for number in range(5000)]


def with_limit(job: spec.TrainingJob, limit: str) -> spec.TrainingJob:
    metadata = job.metadata.model_copy(update={"annotations": {"muster.dev/log-limit": limit}})
    return job.model_copy(update={"metadata": metadata})


def dropping(folder: Path, limit: int) -> shim.Shim:
    """A shim whose replica has written all lines."""
    folder.mkdir(exist_ok=True)
    (folder / "log").write_text("".join(f"{line}\n" for line in LINES))
    return shim.Shim(str(folder), {"log": str(folder / "log"), "log_limit": limit})


def test_the_oldest_part_goes_with_a_line_that_says_so_and_the_rest_keeps_its_place(tmp_path: Path) -> None:
    one = dropping(tmp_path, 2 * MI)
    size = (tmp_path / "log").stat().st_size
    one._record_log_size()
    status = (tmp_path / "log").stat()
    assert (status.st_size, status.st_blocks * 512 <= 2 * MI) == (size, True)
    first, *rest = read_lines(tmp_path / "log", 0, None, None)
    assert first.startswith("muster: the first ")
    assert rest == LINES[-len(rest) :]
    assert MI < sum(len(line) + 1 for line in rest) <= 3 * MI // 2
    assert list(read_lines(tmp_path / "log", tail_offset(tmp_path / "log", 0, None, 3), None, None)) == LINES[-3:]
    everything = tail_offset(tmp_path / "log", 0, None, 10**6)
    assert list(read_lines(tmp_path / "log", everything, None, None)) == [first, *rest]


def test_a_follower_behind_what_was_dropped_goes_on_with_what_is_left(tmp_path: Path) -> None:
    one = dropping(tmp_path, 2 * MI)
    follower = read_lines(tmp_path / "log", 0, None, lambda: True)
    assert [next(follower) for _ in range(3)] == LINES[:3]
    one._record_log_size()
    seen = list(follower)
    (said,) = [number for number, line in enumerate(seen) if line.startswith("muster: the first ")]
    assert seen[said + 1 :] == LINES[-(len(seen) - said - 1) :]
    assert not any("\0" in line for line in seen)


def test_where_no_hole_can_be_punched_all_is_dropped_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim, "_punch", lambda file, length: False)
    one = dropping(tmp_path, 2 * MI)
    (tmp_path / shim.TIMES).write_text("1.0 5\n")
    one._record_log_size()
    with open(tmp_path / "log", "a") as file:
        file.write("goes on\n")
    said, last = read_lines(tmp_path / "log", 4 * MI, None, None)  # a follower that was further
    assert (said.startswith("muster: "), last) == (True, "goes on")


def test_a_hole_is_punched_by_a_libc_without_names_of_64_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libc = SimpleNamespace(fallocate=ctypes.CDLL(None, use_errno=True).fallocate)
    monkeypatch.setattr(ctypes, "CDLL", lambda *names, **options: libc)
    one = dropping(tmp_path, 2 * MI)
    one._record_log_size()
    assert (tmp_path / "log").stat().st_blocks * 512 <= 2 * MI


@pytest.mark.parametrize(("text", "limit"), [("0", 0), ("1Mi", MI), ("10Gi", 10 * 2**30)])
def test_a_job_may_have_a_limit_of_its_own(text: str, limit: int) -> None:
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
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="log-limit"):
        job_log_limit(with_limit(shell_job("a", "true"), text), 5)


@pytest.mark.slow
def test_a_job_that_prints_more_than_its_limit_is_followed_over_it(home: Path, tmp_path: Path) -> None:
    client = LocalClient.up(home, idle_s=60)
    text = "x" * 1000
    line = f"i=0; while [ ! -e {tmp_path}/go ] || [ $i -lt 4000 ]; do echo $i {text}; i=$((i+1)); done; echo last"
    client.submit(with_limit(shell_job("prints", line), "1Mi"))
    follower = client.log_lines("prints", "default", "trainer", 0, LogOptions(follow=True))
    assert next(follower).startswith("0 ")
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
