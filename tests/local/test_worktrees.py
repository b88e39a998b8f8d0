"""Worktrees of commits, in a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.local.support import has

from muster.errors import InvalidSpec
from muster.local.worktrees import Repository

OWNER = Path("/results/a.jsonl")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Three commits; `file` has the number of each."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    top = tmp_path / "sources"
    (top / "below").mkdir(parents=True)
    git(top, "init", "--quiet")
    for number in range(3):
        (top / "file").write_text(str(number))
        git(top, "add", "--all")
        git(top, "commit", "--quiet", "--message", f"commit {number}")
    return Repository.containing(top / "below")


def test_a_worktree_has_the_sources_of_its_commit_and_can_be_removed(repository: Repository) -> None:
    commit = repository.commit("HEAD~2", "A")
    folder = repository.worktree(commit, OWNER)
    assert (folder / "file").read_text() == "0"
    assert repository.worktree(commit, OWNER) == folder
    repository.remove(commit, OWNER)
    assert not folder.exists()
    assert git(repository.top, "worktree", "list").count("\n") == 0
    assert (repository.top / "file").read_text() == "2"


def test_a_worktree_that_a_kill_left_incomplete_or_that_was_changed_is_made_again(repository: Repository) -> None:
    commit = repository.commit("HEAD~1", "A")
    folder = repository.worktree(commit, OWNER)
    (folder / "file").unlink()
    assert (repository.worktree(commit, OWNER) / "file").read_text() == "1"
    (folder / "file").write_text("changed")
    assert (repository.worktree(commit, OWNER) / "file").read_text() == "1"


def test_commands_with_other_results_have_their_own_worktrees_of_a_commit(repository: Repository) -> None:
    commit, other = repository.commit("HEAD", "A"), Path("/results/b.jsonl")
    mine, theirs = repository.worktree(commit, OWNER), repository.worktree(commit, other)
    (theirs / "file").write_text("changed by its program")
    repository.remove(commit, OWNER)
    assert not mine.exists()
    assert repository.worktree(commit, OWNER) == mine
    assert (theirs / "file").read_text() == "changed by its program"


def test_the_state_of_a_working_tree_changes_with_its_commit_and_with_each_change_of_a_tracked_file(
    repository: Repository,
) -> None:
    file, states = repository.top / "file", [repository.state()]
    for content in (b"new", b"\xff\n", b"\xff\r\n", b"\0a", b"\0b"):  # the last ones are no text to git
        file.write_bytes(content)
        states.append(repository.state())
        assert repository.state() == states[-1]
    file.write_text("2")
    assert repository.state() == states[0]
    git(repository.top, "commit", "--quiet", "--allow-empty", "--message", "next")
    states.append(repository.state())
    assert len(set(states)) == 7


def test_commits_after_good_up_to_bad_are_listed_oldest_first(repository: Repository) -> None:
    commits = [repository.commit(name, "A") for name in ("HEAD~2", "HEAD~1", "HEAD")]
    assert repository.commits_between(commits[0], commits[2]) == commits[1:]
    assert repository.describe(commits[1]).endswith(" n: commit 1")
    with pytest.raises(InvalidSpec, match="GOOD must be an ancestor of BAD"):
        repository.commits_between(commits[2], commits[0])


@pytest.mark.parametrize("revision", ["no-such", "--help", "HEAD:file"])
def test_what_is_no_commit_is_refused(repository: Repository, revision: str) -> None:
    with pytest.raises(InvalidSpec, check=has("A: must be a git revision", repr(revision), field="A")):
        repository.commit(revision, "A")


def test_a_folder_outside_of_a_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="must be in a git repository"):
        Repository.containing(tmp_path)
