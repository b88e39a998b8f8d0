"""`muster bench` through the queue of a real daemon, also when its processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.bench.suites import PROGRAM, SUITE, write_suite
from tests.cli.conftest import Muster
from tests.local.support import eventually, processes_of

pytestmark = pytest.mark.slow
COUNTED = "open('started', 'a').write('x')\n" + PROGRAM
SLOW_RUNS = SUITE.replace("warmup: 1", "warmup: 1, env: {SLEEP: '0.3'}")


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, muster: Muster) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))
    yield home
    muster("local", "down", "--force")


def recorded_runs(out: Path) -> int:
    return sum(line.startswith('{"run"') for line in out.read_text().splitlines()) if out.exists() else 0


@pytest.mark.smoke
def test_a_slower_side_is_a_regression_and_the_same_side_is_not(home: Path, tmp_path: Path, muster: Muster) -> None:
    suite = str(write_suite(tmp_path))
    ended = muster("bench", "compare", ".", "env:TIME=0.55", "--suite", suite, "--json")
    (row,) = ended.rows
    assert (ended.code, row["name"], row["outcome"], row["error"]) == (5, "one", "regression", "")
    assert row["medianSeconds"] == {"a": 0.5, "b": 0.55}
    assert row["metrics"]["wall"] == {
        "ratio": pytest.approx(1.1), "low": pytest.approx(1.1), "high": pytest.approx(1.1),
        "runs": 6, "interleaved": True,
    }  # fmt: skip
    ended = muster("bench", "compare", ".", ".", "--suite", suite)
    assert (ended.code, "unchanged" in ended.out) == (0, True)
    jobs = muster("jobs", "--json").rows
    assert [job["status"]["phase"] for job in jobs] == ["Succeeded", "Succeeded"]


def test_recorded_runs_are_compared_later(home: Path, tmp_path: Path, muster: Muster) -> None:
    suite = str(write_suite(tmp_path))
    assert muster("bench", "run", suite, "--out", "a.jsonl").code == 0
    write_suite(tmp_path, PROGRAM.replace("0.5", "0.6"))
    ended = muster("bench", "run", suite, "--out", "b.jsonl", "--json")
    assert ended.rows[0]["metrics"]["wall"] == {"median": 0.6, "min": 0.6, "max": 0.6}
    assert (ended.code, ended.rows[0]["runs"]) == (0, 8)
    assert muster("bench", "compare", "a.jsonl", "b.jsonl").code == 5


def test_two_commands_in_the_same_second_have_results_of_their_own(
    home: Path, tmp_path: Path, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.cli.bench.time", SimpleNamespace(strftime=lambda form: "20260101T000000"))
    suite = str(write_suite(tmp_path))
    for side in ("env:TIME=0.55", "env:TIME=0.6"):  # both with this pid, as the first processes of two pods
        assert muster("bench", "compare", ".", side, "--suite", suite).code == 5
    assert len(list(Path("muster-bench").glob("*.jsonl"))) == 2


def test_a_benchmark_that_fails_ends_with_code_1_and_the_end_of_its_output(
    home: Path, tmp_path: Path, muster: Muster
) -> None:
    suite = str(write_suite(tmp_path, "raise SystemExit('no data')"))
    ended = muster("bench", "compare", ".", "env:A=b", "--suite", suite, "--json")
    assert (ended.code, ended.rows[0]["outcome"]) == (1, None)
    assert ended.rows[0]["error"] == "one@A, run 0: exit code 1; the end of its output:\nno data"


def test_a_killed_command_is_continued_without_repeating_a_run(home: Path, tmp_path: Path, muster: Muster) -> None:
    suite, out = write_suite(tmp_path, COUNTED, SLOW_RUNS), tmp_path / "r.jsonl"
    words = ["bench", "compare", ".", "env:TIME=0.55", "--suite", str(suite), "--out", str(out)]
    command = subprocess.Popen([sys.executable, "-c", "import muster.cli; muster.cli.main()", *words])
    eventually(lambda: recorded_runs(out) >= 2)
    command.send_signal(signal.SIGKILL)
    command.wait()
    before = recorded_runs(out)
    assert 2 <= before < 12
    assert muster(*words).code == 5
    assert (recorded_runs(out), len((tmp_path / "started").read_text())) == (12, 12)
    assert len(muster("jobs", "--json").rows) == 1


def test_a_killed_job_is_restarted_and_repeats_only_the_run_that_was_killed(
    home: Path, tmp_path: Path, muster: Muster
) -> None:
    suite, out = write_suite(tmp_path, COUNTED, SLOW_RUNS), tmp_path / "r.jsonl"
    words = ["bench", "compare", ".", "env:TIME=0.55", "--suite", str(suite), "--out", str(out)]
    command = subprocess.Popen([sys.executable, "-c", "import muster.cli; muster.cli.main()", *words])
    eventually(lambda: recorded_runs(out) >= 2)
    runner = [
        pid for pid in processes_of(home) if b"muster_components.bench" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    started = len((tmp_path / "started").read_text())
    os.kill(runner[0], signal.SIGKILL)
    assert command.wait() == 5
    assert started < 12
    assert recorded_runs(out) == 12
    assert 12 <= len((tmp_path / "started").read_text()) <= 13
    assert muster("jobs", "--json").rows[0]["status"]["attempt"] == 1


def test_a_cancelled_job_is_an_error_and_the_next_command_submits_what_is_missing(
    home: Path, tmp_path: Path, muster: Muster
) -> None:
    suite, out = write_suite(tmp_path, COUNTED, SLOW_RUNS), tmp_path / "r.jsonl"
    words = ["bench", "compare", ".", "env:TIME=0.55", "--suite", str(suite), "--out", str(out)]
    command = subprocess.Popen(
        [sys.executable, "-c", "import muster.cli; muster.cli.main()", *words], stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: recorded_runs(out) >= 2)
    muster("cancel", muster("jobs", "--json").rows[0]["metadata"]["name"])
    _, err = command.communicate()
    assert (command.returncode, "ended as Cancelled without" in err) == (1, True)
    kept = recorded_runs(out)
    assert muster(*words).code == 5
    assert recorded_runs(out) == 12 > kept
    assert len(muster("jobs", "--json").rows) == 2


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_bisect_names_the_commit_and_skips_one_that_does_not_run(home: Path, tmp_path: Path, muster: Muster) -> None:
    suite = write_suite(tmp_path / "repository" / "bench")
    top = suite.parent.parent
    git(top, "init", "--quiet")
    for number in range(7):  # the fifth commit is slower, the middle one does not run
        program = PROGRAM.replace("0.5", "0.55") if number >= 5 else PROGRAM
        (suite.parent / "program.py").write_text("raise SystemExit(1)" if number == 3 else f"# {number}\n{program}")
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "--message", f"commit {number}")
    ended = muster("bench", "bisect", "HEAD~6", "HEAD", "--suite", str(suite), "--json")
    (row,) = ended.rows
    assert (ended.code, row["benchmark"]) == (5, "one")
    assert [one["commit"] for one in row["firstBad"]] == [git(top, "rev-parse", "HEAD~1")]
    assert row["firstBad"][0]["description"].endswith(" n: commit 5")
    results = {step["commit"]: step["result"] for step in row["steps"]}
    assert results[git(top, "rev-parse", "HEAD~3")] == "does not run"
    assert len(git(top, "worktree", "list").splitlines()) == 1

    ended = muster("bench", "bisect", "HEAD~6", "HEAD~5", "--suite", str(suite), "--json")
    assert (ended.code, ended.rows[0]["firstBad"]) == (0, [])
    ended = muster("bench", "compare", "HEAD~2", "HEAD~1", "--suite", str(suite), "--json")
    assert json.loads(ended.out)[0]["outcome"] == "regression"


def test_a_suspended_job_continues_after_the_run_that_was_stopped(home: Path, tmp_path: Path, muster: Muster) -> None:
    suite, out = write_suite(tmp_path, COUNTED, SLOW_RUNS), tmp_path / "r.jsonl"
    words = ["bench", "compare", ".", "env:TIME=0.55", "--suite", str(suite), "--out", str(out)]
    command = subprocess.Popen([sys.executable, "-c", "import muster.cli; muster.cli.main()", *words])
    eventually(lambda: recorded_runs(out) >= 2)
    name = muster("jobs", "--json").rows[0]["metadata"]["name"]
    muster("suspend", name)
    eventually(lambda: muster("jobs", "--json").rows[0]["status"]["phase"] == "Suspended")
    kept = recorded_runs(out)
    muster("resume", name)
    assert command.wait() == 5
    assert kept < 12 == recorded_runs(out)
    assert 12 <= len((tmp_path / "started").read_text()) <= 13
