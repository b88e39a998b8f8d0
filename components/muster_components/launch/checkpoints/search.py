"""Searches a folder for its newest complete checkpoint, with bounds on depth and names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster_components.launch.checkpoints.folder import Folder, NameBudget, open_folder
from muster_components.launch.checkpoints.formats import CheckpointMark, FoundCheckpoint, candidates, is_leaf

MAX_NAMES = 4000
MAX_DEPTH = 6
OWN_FOLDERS = frozenset(
    ("capture", "compilation", "compile-cache", "flight-recorder", "heartbeats", "launches", "logs", "metrics",
     "report", "reports", "stacks", "submission", "traces")
)  # fmt: skip
"""Folders that Muster writes into the run folder; `submission` has a copy of the user's folder as it was before."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The newest complete checkpoint, or None. `readable`: the folder itself could be read. `complete`: all of it was
    searched."""

    newest: FoundCheckpoint | None
    readable: bool = True
    complete: bool = True


class CheckpointSearch:
    """Searches the same folder again and again; what has not changed is not read again."""

    def __init__(self, root: Path, world_size: int, *, skip: frozenset[str] = frozenset()) -> None:
        self._root = root
        self._world_size = world_size
        self._skip = skip
        self._known: dict[str, tuple[tuple[object, ...], FoundCheckpoint | None]] = {}
        self._resting: dict[str, tuple[object, ...]] = {}

    def run(self, *, ended: bool = False) -> SearchResult:
        """The newest complete checkpoint. `ended`: all ranks have ended, so that no checkpoint has to rest."""
        budget = NameBudget(MAX_NAMES)
        found: list[FoundCheckpoint] = []
        known, self._known = self._known, {}
        resting, self._resting = self._resting, {}
        with open_folder(str(self._root), budget) as root:
            if root is None:
                return SearchResult(None, readable=False, complete=False)
            self._visit(root, 0, budget, lambda one: found.extend(self._read(one, known, resting, ended)))
        newest = max(found, key=lambda one: (one.at, -1 if one.step is None else one.step, one.path), default=None)
        return SearchResult(newest, complete=budget.left > 0)

    def _visit(self, folder: Folder, depth: int, budget: NameBudget, use: Callable[[CheckpointMark], None]) -> None:
        for candidate in candidates(folder, self._world_size):
            use(candidate)
        if depth >= MAX_DEPTH or is_leaf(folder.name):
            return
        skip = self._skip if depth == 0 else frozenset()
        for name in sorted(folder.folders - skip, key=_newest_first):
            with open_folder(name, budget, folder) as child:
                if child is not None:
                    self._visit(child, depth + 1, budget, use)

    def _read(
        self,
        candidate: CheckpointMark,
        known: dict[str, tuple[tuple[object, ...], FoundCheckpoint | None]],
        resting: dict[str, tuple[object, ...]],
        ended: bool,
    ) -> list[FoundCheckpoint]:
        if candidate.must_rest:
            self._resting[candidate.path] = candidate.stamp
            if not ended and resting.get(candidate.path) != candidate.stamp:
                return []
        before = known.get(candidate.path)
        # What was incomplete may be complete without a change of its mark: a folder that it names may have come.
        if before is None or before[0] != candidate.stamp or before[1] is None:
            before = candidate.stamp, candidate.read()
        self._known[candidate.path] = before
        return [] if before[1] is None else [before[1]]


def _newest_first(name: str) -> tuple[int, str]:
    """Higher numbers first, since older checkpoints matter only if newer ones are incomplete."""
    numbers = re.findall(r"\d{1,15}", name, re.ASCII)
    return (-int(numbers[-1]) if numbers else 0, name)
