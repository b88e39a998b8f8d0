"""`muster bench` before anything is submitted: what it refuses and how."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.bench.suites import write_suite
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient

import muster.bench.compare as muster_compare
from muster.bench.session import Session, Side


@pytest.fixture
def suite(tmp_path: Path, cluster: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(write_suite(tmp_path / "benchmarks"))


def recorded(path: Path, time_s: float, suite: str, kind: str = "run") -> str:
    """A file of results of six runs."""
    from muster.bench.suite import parse_suite, resolve_suite

    document = resolve_suite(parse_suite(Path(suite).read_text(), suite), Path(suite), {}).as_json()
    runs = [
        {"run": {"program": "one@A", "repetition": number, "wall_s": [9.0, time_s + number / 1000], "total_cpu_s": 1.0}}
        for number in range(6)
    ]
    lines = [{"plan": {"kind": kind, "suite": document}, "version": 1}, *runs]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("compare", "HEAD", "."), "--suite"),
        (("bisect", "HEAD~1", "HEAD"), "--suite"),
        (("compare", ".", "env:", "--suite", "SUITE"), "B"),
        (("compare", ".", "env:A", "--suite", "SUITE"), "B"),
        (("compare", ".", "env:MUSTER_JOB=x", "--suite", "SUITE"), "B"),
        (("compare", "cmd:", ".", "--suite", "SUITE"), "A"),
    ],
)
def test_sides_that_cannot_be_read_are_refused(muster: Muster, suite: str, words: tuple[str, ...], field: str) -> None:
    ended = muster("bench", *(suite if word == "SUITE" else word for word in words), "--json")
    assert (ended.code, ended.error["field"]) == (2, field)


def test_revisions_need_a_repository(muster: Muster, suite: str) -> None:
    ended = muster("bench", "compare", "HEAD", ".", "--suite", suite)
    assert ended.code == 2
    assert "must be in a git repository to compare revisions" in ended.err


def test_a_wrong_suite_is_refused_with_its_line(muster: Muster, suite: str) -> None:
    Path(suite).write_text("benchmarks:\n- name: one\n  comand: [x]\n")
    ended = muster("bench", "run", suite, "--json")
    assert (ended.code, ended.error["field"]) == (2, "benchmarks[0].comand")
    assert ended.error["message"].startswith(f"{suite}:3: benchmarks[0].comand: unknown field; did you mean 'command'?")


def test_files_of_results_are_compared_without_a_cluster(muster: Muster, suite: str, tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.jsonl", 0.5, suite), recorded(tmp_path / "b.jsonl", 0.55, suite)
    ended = muster("bench", "compare", a, b, "--json")
    (row,) = ended.rows
    assert (ended.code, row["name"], row["outcome"]) == (5, "one", "regression")
    assert row["metrics"]["wall"]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert row["metrics"]["wall"]["interleaved"] is False
    assert row["metrics"]["totalCpu"]["ratio"] == 1
    assert muster("bench", "compare", b, a).code == 0
    assert muster("bench", "compare", a, a).code == 0


def test_files_of_another_kind_are_refused(muster: Muster, suite: str, tmp_path: Path) -> None:
    a = recorded(tmp_path / "a.jsonl", 0.5, suite)
    other = recorded(tmp_path / "b.jsonl", 0.5, suite, kind="bisect")
    assert "must be a file of `muster bench run`; got one of bench bisect" in muster("bench", "compare", a, other).err
    assert muster("bench", "compare", a, suite).code == 2


def test_without_common_runs_the_comparison_fails(muster: Muster, suite: str, tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.jsonl", 0.5, suite), recorded(tmp_path / "b.jsonl", 0.5, suite)
    Path(b).write_text(Path(b).read_text().replace("one@A", "two@A"))
    ended = muster("bench", "compare", a, b, "--json")
    assert (ended.code, ended.rows[0]["outcome"]) == (1, None)
    assert ended.rows[0]["error"] == "both sides need at least 5 runs with the metric wall"


def test_in_a_cluster_an_image_is_required_and_revisions_are_refused(muster: Muster, suite: str) -> None:
    words = ("bench", "compare", "HEAD", ".", "--suite", suite, "--cluster", "kubernetes", "--json")
    assert muster(*words).error["field"] == "image"
    Path(suite).write_text(f"image: example.com/bench\n{Path(suite).read_text()}")
    ended = muster(*words)
    assert (ended.code, ended.error["field"]) == (2, "A")
    assert "git revisions can be compared on this host only" in ended.error["message"]


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, check=True)


@pytest.fixture
def committed(suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The suite in a repository with one commit."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    folder = Path(suite).parent
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return suite


def test_a_command_removes_its_own_worktrees_and_finds_them_again_after_an_interruption(
    muster: Muster, committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def compared(session: Session, a: Side, b: Side) -> tuple[()]:
        assert a.folder is not None
        folders.append(Path(a.folder))
        if len(folders) == 1:
            raise KeyboardInterrupt
        return ()

    monkeypatch.setattr(muster_compare, "compare_sides", compared)
    words = ("bench", "compare", "HEAD", ".", "--suite", committed, "--out")
    assert muster(*words, "a.jsonl").code == 130
    assert muster(*words, "b.jsonl").code == 0
    assert [folder.exists() for folder in folders] == [True, False]
    assert muster(*words, "a.jsonl").code == 0
    assert folders[2] == folders[0]
    assert not folders[0].exists()


@pytest.mark.parametrize(
    "words",
    [("compare", ".", "HEAD"), ("compare", "HEAD", "env:X=1"), ("compare", "cmd:true", "."), ("run",)],
    ids=" ".join,
)
def test_results_of_the_working_tree_are_not_continued_after_a_change_of_it(
    muster: Muster, committed: str, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(muster_compare, "compare_sides", lambda session, a, b: ())
    monkeypatch.setattr(Session, "execute", lambda session, runs: None)
    suite = (committed,) if words == ("run",) else ("--suite", committed)
    command = ("bench", *words, *suite, "--out", "r.jsonl", "--json")
    assert muster(*command).code == 0
    assert muster(*command).code == 0
    with (Path(committed).parent / "program.py").open("a") as program:
        program.write("changed = True")
    ended = muster(*command)
    assert (ended.code, ended.error["reason"]) == (3, "DifferentPlan")
    assert "(different: sources)" in ended.error["message"]


def test_results_of_two_commits_are_continued_after_a_change_of_the_working_tree(
    muster: Muster, committed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muster_compare, "compare_sides", lambda session, a, b: ())
    command = ("bench", "compare", "HEAD", "HEAD", "--suite", committed, "--out", "r.jsonl")
    assert muster(*command).code == 0
    (Path(committed).parent / "program.py").write_text("changed = True")
    assert muster(*command).code == 0


def test_sources_outside_of_a_repository_need_no_git(
    muster: Muster, suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muster_compare, "compare_sides", lambda session, a, b: ())
    command = ("bench", "compare", ".", "env:X=1", "--suite", suite, "--out", "r.jsonl")
    assert muster(*command).code == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    assert muster(*command).code == 0
