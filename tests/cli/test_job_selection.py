"""The jobs that cancel, suspend and resume act on."""

from __future__ import annotations

import io

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status


@pytest.fixture(autouse=True)
def jobs(cluster: MemoryClient) -> None:
    cluster.kept_jobs = {
        "sweep-1": job("sweep-1", status("Running", startedAt=NOW)),
        "sweep-2": job("sweep-2", status("Pending")),
        "sweep-3": job("sweep-3", status("Succeeded", finishedAt=NOW)),
        "other": job("other", status("Pending"), queue="second"),
    }


def cancelled(cluster: MemoryClient) -> list[str]:
    return [name for verb, name, _ in cluster.calls if verb == "cancel"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--name", "sweep-*"], ["sweep-1", "sweep-2"]),
        (["--queue", "second"], ["other"]),
        (["--phase", "pending"], ["sweep-2", "other"]),
        (["--phase", "Pending", "--name", "sweep-*"], ["sweep-2"]),
        (["--all", "--yes"], ["sweep-1", "sweep-2", "other"]),
    ],
)
def test_options_select_the_unfinished_jobs_that_match_all_of_them(
    cluster: MemoryClient, muster: Muster, options: list[str], names: list[str]
) -> None:
    assert muster("cancel", *options).code == 0
    assert cancelled(cluster) == names


def test_suspend_and_resume_select_likewise(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["sweep-2"] = job("sweep-2", status("Suspended"), suspend=True)
    assert muster("suspend", "--name", "sweep-*").code == 0
    assert muster("resume", "--name", "sweep-*").code == 0
    assert cluster.calls == [("suspend", "sweep-1", "default"), ("resume", "sweep-2", "default")]


@pytest.mark.parametrize("words", [[], ["sweep-1", "--all"], ["sweep-1", "--queue", "second"]])
def test_either_names_or_options_must_be_given(cluster: MemoryClient, muster: Muster, words: list[str]) -> None:
    ended = muster("cancel", *words, "--json")
    assert (ended.code, ended.error["field"], cancelled(cluster)) == (2, "jobs", [])


def test_if_no_job_matches_it_says_so(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("cancel", "--name", "none-*")
    assert (ended.code, "no job" in ended.err, cancelled(cluster)) == (3, True, [])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "count"), [("y\n", 3), ("\n", 0)])
def test_all_asks_on_a_terminal(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, answer: str, count: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ended = muster("cancel", "--all")
    assert (ended.code == 0, len(cancelled(cluster))) == (count > 0, count)
    assert "default/sweep-1" in ended.err


def test_all_without_a_terminal_needs_yes(cluster: MemoryClient, muster: Muster) -> None:
    ended = muster("cancel", "--all", "--json")
    assert (ended.error["reason"], cancelled(cluster)) == ("NotConfirmed", [])
