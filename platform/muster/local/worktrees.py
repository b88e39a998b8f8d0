"""Folders with the sources of git commits, for programs that are compared or bisected on this host; and what git knows
of the code of a run.

They are detached worktrees below Muster's home, named by commit and the results file of their command: a command that
was killed finds them again, and another one does not remove them.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.errors import InvalidSpec, Refused
from muster.local.home import home_path

_MAX_COMMITS = 100_000


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository. `top` is the folder of its working tree."""

    top: Path

    @classmethod
    def containing(cls, folder: Path) -> Repository:
        """The repository of a folder. Raises `InvalidSpec` if it is in none."""
        found = _git(folder, "rev-parse", "--show-toplevel")
        if found.returncode:
            raise InvalidSpec(f"{folder} must be in a git repository to compare revisions; git: {found.stderr.strip()}")
        return cls(Path(found.stdout.strip()))

    def commit(self, revision: str, field: str) -> str:
        """The full hash of a revision. Raises `InvalidSpec` that names `field`."""
        found = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if found.returncode:
            message = f"{field}: must be a git revision in {self.top}, a file of results, env:NAME=VALUE or cmd:COMMAND"
            raise InvalidSpec(f"{message}; got {revision!r}", field=field)
        return found.stdout.strip()

    def commits_between(self, good: str, bad: str) -> list[str]:
        """The commits after `good` up to `bad`, oldest first, along first parents. Raises `InvalidSpec` if `good` is no
        ancestor of `bad`."""
        if _git(self.top, "merge-base", "--is-ancestor", good, bad).returncode:
            raise InvalidSpec(f"GOOD must be an ancestor of BAD; got {good[:12]} and {bad[:12]}", field="GOOD")
        arguments = ("rev-list", "--first-parent", "--reverse", f"--max-count={_MAX_COMMITS}", f"{good}..{bad}")
        return self._output(*arguments).split()

    def describe(self, commit: str) -> str:
        """Short hash, author and subject."""
        return self._output("show", "--no-patch", "--format=%h %an: %s", commit).strip()

    def state(self) -> str:
        """The commit of the working tree and a digest of the changes of tracked files. Raises `Refused` if there is no
        commit."""
        options = ("--full-index", "--no-ext-diff", "--no-textconv", "--no-color")  # the index line has a file's hash
        changes = self._output("diff", *options, "HEAD").encode(errors="surrogateescape")
        return f"{self._output('rev-parse', 'HEAD').strip()} {hashlib.sha256(changes).hexdigest()}"

    def files(self) -> list[str]:
        """Paths of the files that git tracks, and of those that it does not ignore."""
        return [name for name in self._output("ls-files", "-z", "-co", "--exclude-standard").split("\0") if name]

    def head_and_diff(self) -> tuple[str, str]:
        """The commit of the working tree, and the changes of tracked files; empty texts without a commit."""
        head = _git(self.top, "rev-parse", "--verify", "--quiet", "HEAD")
        if head.returncode:
            return "", ""
        return head.stdout.strip(), self._output("diff", "--binary", "--no-ext-diff", "--no-color", "HEAD")

    def worktree(self, commit: str, results: Path) -> Path:
        """A folder with the sources of a commit for the command with this results file; created if it does not exist.
        Raises `Refused`, OSError."""
        folder = self._worktree_path(commit, results)
        if self._is_complete(folder, commit):
            return folder
        self.remove(commit, results)
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        added = _git(self.top, "worktree", "add", "--force", "--detach", str(folder), commit)
        if added.returncode:
            raise Refused(f"git cannot create a worktree of {commit[:12]}: {added.stderr.strip()}", reason="NoWorktree")
        return folder

    def remove(self, commit: str, results: Path) -> None:
        """Remove the worktree of a commit for the command with this results file, if there is one."""
        _git(self.top, "worktree", "remove", "--force", str(self._worktree_path(commit, results)))
        _git(self.top, "worktree", "prune")

    def _is_complete(self, folder: Path, commit: str) -> bool:
        """Whether git finished the worktree, and none of its tracked files is changed."""
        if not (folder / ".git").exists():
            return False
        head = _git(folder, "rev-parse", "HEAD")
        status = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return (head.stdout.strip(), status.returncode, status.stdout) == (commit, 0, "")

    def _worktree_path(self, commit: str, results: Path) -> Path:
        return home_path() / "worktrees" / f"{self.top.name}-{_digest(self.top)}" / f"{commit}-{_digest(results)}"

    def _output(self, *arguments: str) -> str:
        done = _git(self.top, *arguments)
        if done.returncode:
            raise Refused(f"git {arguments[0]}: {done.stderr.strip()}", reason="GitFailed")
        return done.stdout


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder. Raises `Refused` if git is not installed."""
    command: Sequence[str] = ["git", "-C", str(folder), *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a git hook
    try:
        return subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise Refused("git is not installed; it is needed to compare revisions", reason="NoGit") from None
