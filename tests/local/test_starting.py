"""What a client hears of a daemon that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import DaemonError
from muster.local.daemon import idle_seconds
from muster.local.daemon_client import start_daemon
from muster.local.home import open_home


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf"])
def test_idle_seconds_that_are_no_such_number_are_named(text: str) -> None:
    with pytest.raises(
        DaemonError, match=f"MUSTER_IDLE_SECONDS: must be a finite number of seconds from 0, such as 600; got '{text}'"
    ):
        idle_seconds(None, {"MUSTER_IDLE_SECONDS": text})
    with pytest.raises(
        DaemonError, match=f"--idle-seconds: must be a finite number of seconds from 0, such as 600; got '{text}'"
    ):
        idle_seconds(text, {})


def test_idle_seconds_are_those_asked_for_else_the_variables_else_600() -> None:
    assert idle_seconds("5", {"MUSTER_IDLE_SECONDS": "7"}) == 5.0
    assert idle_seconds(None, {"MUSTER_IDLE_SECONDS": "0"}) == 0.0
    assert idle_seconds(None, {}) == 600.0


def test_a_client_hears_of_a_bad_variable_by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "abc")
    with pytest.raises(DaemonError, match=r"MUSTER_IDLE_SECONDS: must be .* got 'abc'"):
        start_daemon(open_home(home))


def test_whatever_keeps_a_daemon_from_starting_is_told_and_logged(home: Path) -> None:
    opened = open_home(home)
    opened.stopped_marker.mkdir()  # cannot be unlinked
    with pytest.raises(DaemonError, match=r"cannot start: IsADirectoryError: .*; see daemon\.log") as failure:
        start_daemon(opened)
    assert failure.value.reason == "StartFailed"
    assert "IsADirectoryError" in opened.log.read_text()


@pytest.mark.slow
def test_a_daemon_that_neither_answers_nor_detaches_is_told_as_what_it_said(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home.parent / "wedged"
    program.write_text("#!/bin/sh\necho 'the disk hangs' >&2\nwhile :; do sleep 1; done\n")
    program.chmod(0o700)
    monkeypatch.setattr("muster.local.daemon_client.sys.executable", str(program))
    monkeypatch.setattr("muster.local.daemon_client._START_TIMEOUT_S", 5.0)
    with pytest.raises(DaemonError, match="the disk hangs") as refused:
        start_daemon(open_home(home))
    assert refused.value.reason == "StartFailed"
