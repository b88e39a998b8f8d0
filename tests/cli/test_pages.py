"""Pages of the command line word for word, as in `pages/`. Other tests compare codes, names and numbers.

After an intended change of a page, write it anew: `python -m tests.cli.test_pages`.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group, RenderableType
from tests.cli.memory import NOW
from tests.cli.objects import FAILURE, job, placement, status

from muster.cli.views.job_rows import listed_job, sorted_for_display
from muster.cli.views.job_table import job_table
from muster.cli.views.jobs import JobDetails, job_details_view
from muster.cli.views.queues import queue_tree
from muster.cli.views.watch import WatchFrame, change_lines, end_summary
from muster.tables import QueueTableRow

WIDTH = 120
PAGES = Path(__file__).parent / "pages"
RUNNING = status(
    "Running", placement=placement("n1", "n2"), podsWanted=2, podsReady=2, admittedAt=NOW, startedAt=NOW + 20,
    lastCheckpoint={"step": 20, "at": NOW + 100}, progress={"step": 41, "steps": 60, "loss": 2.5, "at": NOW + 130},
)  # fmt: skip
WAITING = status(
    "Pending", "QuotaExceeded", "needs 16 h200 GPUs; 8 of 24 are free", queuePosition=2, estimatedStart=NOW + 3600
)
FAILED = status(
    "Failed", "TooManyRestarts", "the limit of 3 restarts is reached", lastFailure=FAILURE, restarts=3, attempt=3,
    startedAt=NOW, finishedAt=NOW + 65,
)  # fmt: skip


def jobs() -> RenderableType:
    """The table of a running, a waiting and a failed job."""
    named = (("llama", RUNNING), ("mixtral", WAITING), ("bert", FAILED))
    return job_table(sorted_for_display([listed_job(job(name, state)) for name, state in named]), NOW + 130, WIDTH)


def describe() -> RenderableType:
    """A failed job with its events."""
    event = {"at": NOW + 65, "type": "Warning", "reason": "Failed", "message": "exit code 3", "count": 2}
    details = JobDetails(job("bert", FAILED), [event], [], Path("/runs/default-bert-u1"), NOW + 130)
    return job_details_view(details)


def queues() -> RenderableType:
    """A tree in which one queue borrows, and a queue whose parent does not exist."""

    def row(name: str, parent: str | None, problem: str = "", **gpus: int) -> QueueTableRow:
        amounts: dict[str, dict[str, str]] = {
            "guaranteed": {},
            "limit": {},
            "lend": {},
            "used": {},
            "borrowed": {},
            "available": {},
        }
        amounts |= {field: {"nvidia.com/gpu": str(amount)} for field, amount in gpus.items()}
        fields: Any = {"name": name, "parent": parent, "active": not problem, "message": problem, "overcommitted": None}
        fields |= {"reason": "Ready", "weight": 1.0, "share": 0.0, "waiting": 1, "admitted": 2}
        fields["resources"] = [{"flavor": "h200", **amounts}]
        tree_row: QueueTableRow = fields
        return tree_row

    rows = [
        row("company", None, guaranteed=32, used=28),
        row("product", "company", guaranteed=16, used=8),
        row("research", "company", guaranteed=16, limit=24, used=20),
        row("lost", "nowhere", "its parent 'nowhere' does not exist"),
    ]
    return queue_tree(rows, WIDTH)


def watch() -> RenderableType:
    """The lines of a job that waits, starts and fails."""
    states = (WAITING, status("Admitted", placement=placement("n1", "n2")), RUNNING, FAILED)
    frames = [WatchFrame(job(status=state), None, NOW + 130) for state in states]
    pairs = zip([None, *frames[:-1]], frames, strict=True)
    return Group(*(line for before, frame in pairs for line in change_lines(before, frame)), end_summary(frames[-1]))


def rendered(page: Callable[[], RenderableType]) -> str:
    """The page as a pipe gets it."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, highlight=False).print(page())
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("page", [jobs, describe, queues, watch], ids=lambda page: page.__name__)
def test_a_page_is_word_for_word_that_of_its_file(
    monkeypatch: pytest.MonkeyPatch, page: Callable[[], RenderableType]
) -> None:
    monkeypatch.setenv("TZ", "UTC")  # pages show local times
    time.tzset()
    try:
        assert rendered(page) == (PAGES / f"{page.__name__}.txt").read_text()
    finally:
        monkeypatch.undo()
        time.tzset()


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    for each in (jobs, describe, queues, watch):
        (PAGES / f"{each.__name__}.txt").write_text(rendered(each))
