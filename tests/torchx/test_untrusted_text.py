"""What a job or a cluster wrote does nothing in the terminal of its reader through TorchX."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from tests.torchx.clients import LoggedScheduler, Ranks
from tests.torchx.jobs import job, running

from muster.api.spec import LastFailure, TrainingJob
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions
from muster.follow import status_message
from muster.torchx.status import describe_response
from muster.workload import conditions, transitions

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
RED = "\x1b[31mred\x1b[0m"


class Logged(Ranks):
    """A job that runs and has written a line."""

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return job(running())

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        yield f"{RED}{CLIPBOARD} step 1"


class Terminal(io.StringIO):
    """Standard output of a user at a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("program", "stdout", "line"),
    [
        ("torchx", Terminal, f"{RED} step 1\x1b[0m\n"),
        ("torchx", io.StringIO, f"{RED}{CLIPBOARD} step 1\n"),
        ("launcher.py", Terminal, f"{RED}{CLIPBOARD} step 1\n"),
    ],
)
def test_torchx_log_gives_a_terminal_text_and_colours_and_all_others_what_was_written(
    monkeypatch: pytest.MonkeyPatch, program: str, stdout: type[io.StringIO], line: str
) -> None:
    monkeypatch.setattr("sys.argv", [program, "log"])
    monkeypatch.setattr("sys.stdout", stdout())
    assert list(LoggedScheduler(Logged()).log_iter("default:a-1", "main")) == [line]


def test_the_result_of_a_job_is_sanitized() -> None:
    ended = transitions.finish(running(), conditions.FAILED, "Error", f"it said{CLIPBOARD}: no", 3.0)
    assert status_message(job(ended)) == "it said: no"
    failure = LastFailure(pod="a-1-main-0-x", exit_code=1, log_tail=f"{RED}{CLIPBOARD} bad\n")
    text = describe_response(job(ended.model_copy(update={"last_failure": failure, "finished_at": 4.0})))
    assert json.loads(text.structured_error_msg)["message"]["message"] == "red bad"
