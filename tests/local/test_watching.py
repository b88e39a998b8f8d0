"""A job is deleted, and another gets its name: whoever follows the first one is told, and never of the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.local.small import eventually, phase_of, shell_job

from muster.errors import NotFound
from muster.local.client import LocalClient
from muster.log_options import LogOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def own(home: Path) -> LocalClient:
    """A daemon of the test's own, with a job that runs until it is deleted."""
    own = LocalClient.up(home, nodes="4x8", idle_s=60)
    own.submit(shell_job("llama", "echo first; exec sleep 600"))
    eventually(lambda: phase_of(own, "llama") == "Running")
    return own


def replace(own: LocalClient, line: str) -> None:
    """Delete the job, and submit another one of its name."""
    own.delete("TrainingJob", "llama")
    eventually(lambda: not own.jobs())
    own.submit(shell_job("llama", line))
    eventually(lambda: phase_of(own, "llama") in ("Running", "Succeeded"))


@pytest.mark.parametrize("line", ["exec sleep 600", "true"])
def test_whoever_watches_is_told_that_the_job_was_deleted(own: LocalClient, line: str) -> None:
    seen = own.watch("llama")
    assert next(seen).status.phase == "Running"
    replace(own, line)
    with pytest.raises(NotFound, match="job default/llama was deleted"):
        next(seen)


def test_a_followed_log_ends(own: LocalClient) -> None:
    lines = own.log_lines("llama", "default", "trainer", 0, LogOptions(follow=True))
    assert next(lines) == "first"
    replace(own, "echo second; exec sleep 600")
    assert list(lines) == []
    assert phase_of(own, "llama") == "Running"
