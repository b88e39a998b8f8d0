"""The code that a run starts with: which files belong to it, and a copy of them that stays with the run.

A job may wait for hours, and its files are edited meanwhile. The copy has what was submitted. In a git repository it
has the files that git tracks or would track, else those below the folder. What is not copied (ignored files, large
files such as data) is a link to the original, so that paths relative to a script still work.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from muster.errors import InvalidSpec, Refused
from muster.local.home import home_path
from muster.local.worktrees import Repository
from muster.text import format_bytes

MAX_FILES = 5000
MAX_FILE_BYTES = 2_000_000
MAX_BYTES = 100_000_000
IGNORE_FILES = (".musterignore", ".torchxignore")
_NEVER = frozenset((".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"))


@dataclass(frozen=True, slots=True)
class Code:
    """Files of one folder, as paths relative to it, sorted. `commit` is empty outside of git."""

    root: Path
    files: tuple[str, ...]
    commit: str = ""
    diff: str = ""  # of tracked files against the commit

    @property
    def label(self) -> str:
        """`git 3bea1b51` or `git 3bea1b51 with changes`; outside of git the number of files."""
        if not self.commit:
            return f"{len(self.files)} files"
        return f"git {self.commit[:12]}{' with changes' if self.diff else ''}"

    def relative(self, path: Path) -> str | None:
        """The path of a file or folder relative to the root; None if it is elsewhere."""
        try:
            return str(path.resolve().relative_to(self.root.resolve()))
        except ValueError:
            return None


def find_code(folder: Path) -> Code:
    """The code around a folder: its git repository, else the folder itself. Raises `InvalidSpec` if it has too many
    files to be copied."""
    try:
        repository = Repository.containing(folder)
    except (InvalidSpec, Refused):  # not in a repository, or no git
        root = folder.resolve()
        return Code(root, _bounded(root, _walk(root, _ignored_patterns(root) + _home_pattern(root))))
    root, patterns = repository.top, _ignored_patterns(repository.top)
    patterns += _home_pattern(root)
    names = (name for name in repository.files() if not _is_ignored(name, patterns))
    files = _bounded(root, (name for name in names if _is_regular(root / name)))
    return Code(root, files, *repository.head_and_diff())


def copy_code(code: Code, target: Path) -> None:
    """Copy the files, and link what else their folders contain. Raises OSError."""
    target.mkdir(parents=True)
    folders, home = {PurePosixPath(".")}, os.path.realpath(home_path())
    for name in code.files:
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        folders.update(PurePosixPath(name).parents)
        shutil.copy2(code.root / name, copy)
    for folder in sorted(folders):
        for entry in os.scandir(code.root / folder):
            link = target / folder / entry.name
            if entry.name not in _NEVER and not os.path.lexists(link) and os.path.realpath(entry.path) != home:
                link.symlink_to(entry.path)


def _home_pattern(root: Path) -> list[str]:
    """What leaves out MUSTER_HOME if it is inside the folder: it has the copies of all runs."""
    home = Path(os.path.realpath(home_path()))
    inside = home.is_relative_to(root.resolve()) and home != root.resolve()
    return [f"/{home.relative_to(root.resolve())}"] if inside else []


def _ignored_patterns(root: Path) -> list[str]:
    for name in IGNORE_FILES:
        try:
            lines = (root / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return []


def _is_ignored(name: str, patterns: list[str]) -> bool:
    """As in .gitignore, without `!`: a pattern without a slash matches a file or folder of that name anywhere."""
    path = PurePosixPath(name)
    if not _NEVER.isdisjoint(path.parts):
        return True
    whole = [str(path), *(str(parent) for parent in path.parents if parent.name)]
    for pattern in patterns:
        wanted = pattern.rstrip("/")
        candidates = whole if "/" in wanted else path.parts
        if any(fnmatch.fnmatchcase(candidate, wanted.lstrip("/")) for candidate in candidates):
            return True
    return False


def _walk(root: Path, patterns: list[str]) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        relative = Path(folder).relative_to(root)
        folders[:] = sorted(name for name in folders if not _is_ignored(str(relative / name), patterns))
        for name in sorted(files):
            found = str(relative / name)
            if not _is_ignored(found, patterns) and _is_regular(root / found):
                yield found


def _is_regular(path: Path) -> bool:
    """Whether it is a file that is copied: no link, and not large."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES


def _bounded(root: Path, names: Iterator[str]) -> tuple[str, ...]:
    found: list[str] = []
    size = 0
    for name in names:
        found.append(name)
        size += (root / name).lstat().st_size
        if len(found) > MAX_FILES or size > MAX_BYTES:
            raise InvalidSpec(
                f"{root} has more than {MAX_FILES} files or {format_bytes(MAX_BYTES)} of code, which are copied for the"
                f" run; start it from the folder of your project, name what it does not need in {IGNORE_FILES[0]}, or"
                " use --no-copy",
                field="--no-copy",
            )
    return tuple(sorted(found))
