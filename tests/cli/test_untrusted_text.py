"""What a job or a cluster wrote does nothing in the terminal of its reader."""

from __future__ import annotations

import io
import re

import pytest
from rich.table import Table
from rich.text import Text
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, placement, status

from muster.cli.output import console
from muster.errors import ClusterError

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
RED = "\x1b[31mred\x1b[0m"
FAILURE = {"pod": "llama-trainer-0", "exitCode": 1, "logTail": f"step 1{CLIPBOARD}\n{RED}\x1b[2J bad\n"}


class Terminal(io.StringIO):
    """It is a terminal."""

    def isatty(self) -> bool:
        return True


def obeyed(text: str) -> list[str]:
    """Escape sequences and control characters, but for colours and ends of lines."""
    return re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f][^m]{0,8}", re.sub(r"\x1b\[[0-9;]*m", "", text))


@pytest.fixture
def failed(cluster: MemoryClient) -> MemoryClient:
    state = status("Failed", "Error", f"it said: {CLIPBOARD}", lastFailure=FAILURE, finishedAt=NOW)
    cluster.kept_jobs["llama"] = job(status=state)
    cluster.films["llama"] = [state]
    cluster.kept_events = [
        {"at": NOW, "type": "Warning", "reason": f"Odd{CLIPBOARD}", "message": f"an image{CLIPBOARD}", "count": 1}
    ]
    cluster.logs = {("trainer", 0): [f"{RED}{CLIPBOARD} 10%\r{RED} 20%", "two"], ("trainer", 1): ["three"]}
    return cluster


@pytest.mark.parametrize("verb", ["describe", "watch", "jobs"])
def test_what_a_job_wrote_before_it_failed_is_shown_as_text(failed: MemoryClient, muster: Muster, verb: str) -> None:
    ended = muster(verb, *(["llama"] if verb != "jobs" else ["--all"]))
    assert obeyed(ended.out) == []
    assert "red bad" in ended.out
    assert "52;c" not in ended.out.replace("Odd]52;c;cm0gLXJmIH4=", "")


def test_what_else_is_drawn_has_no_escape_sequences_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", out := Terminal())
    drawn = console()
    table = Table()
    table.add_row(f"cell{CLIPBOARD}", Text(f"{RED}\x9b2J"))
    drawn.print(table)
    drawn.print(f"a line\x1b[2J\x00{CLIPBOARD}", style="bold", markup=False, soft_wrap=True)
    assert "a line" in out.getvalue()
    assert obeyed(out.getvalue()) == []


def test_a_terminal_is_given_the_colours_of_a_log_and_nothing_else_of_it(
    failed: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", out := Terminal())
    muster("logs", "llama", "-i", "0")
    assert out.getvalue() == f"{RED} 20%\x1b[0m\ntwo\n"


def test_a_pipe_is_given_a_log_as_it_was_written(failed: MemoryClient, muster: Muster) -> None:
    assert muster("logs", "llama", "-i", "0").out == f"{RED}{CLIPBOARD} 10%\r{RED} 20%\ntwo\n"


def test_an_error_of_a_server_is_sanitized(
    failed: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(namespace: str | None = None) -> None:
        raise ClusterError(f"no{CLIPBOARD} such\x9b2J thing")

    monkeypatch.setattr(failed, "jobs", refused)
    monkeypatch.setattr(failed, "job_list", refused, raising=False)
    assert "error: no such thing" in muster("jobs").err


def test_the_reason_for_missing_output_is_sanitized(cluster: MemoryClient, muster: Muster) -> None:
    cluster.kept_jobs["llama"] = job(status=status("Pending", "Odd", f"a{CLIPBOARD}b", placement=placement("n1")))
    assert muster("logs", "llama").err.endswith("; Odd: ab\n")
