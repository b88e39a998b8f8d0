"""Errors of a daemon that cannot start, as a client gets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.local.support import has

from muster.errors import DaemonError
from muster.local.daemon import idle_seconds
from muster.local.daemon_client import DaemonClient, start_daemon
from muster.local.home import open_home


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf"])
def test_invalid_idle_seconds_are_refused_by_name(text: str) -> None:
    with pytest.raises(DaemonError, check=has("MUSTER_IDLE_SECONDS", f"'{text}'", reason="InvalidIdleTimeout")):
        idle_seconds(None, {"MUSTER_IDLE_SECONDS": text})
    with pytest.raises(DaemonError, check=has("--idle-seconds", f"'{text}'", reason="InvalidIdleTimeout")):
        idle_seconds(text, {})


def test_idle_seconds_are_those_of_the_option_else_the_variable_else_600() -> None:
    assert idle_seconds("5", {"MUSTER_IDLE_SECONDS": "7"}) == 5.0
    assert idle_seconds(None, {"MUSTER_IDLE_SECONDS": "0"}) == 0.0
    assert idle_seconds(None, {}) == 600.0


def test_a_client_gets_the_name_of_an_invalid_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IDLE_SECONDS", "abc")
    with pytest.raises(DaemonError, check=has("MUSTER_IDLE_SECONDS", "'abc'", reason="InvalidIdleTimeout")):
        start_daemon(open_home(home))


def test_the_error_of_a_daemon_that_cannot_start_is_returned_and_logged(home: Path) -> None:
    opened = open_home(home)
    opened.stopped_marker.mkdir()  # cannot be unlinked
    with pytest.raises(DaemonError, check=has("IsADirectoryError", "daemon.log", reason="StartFailed")):
        start_daemon(opened)
    assert "IsADirectoryError" in opened.log.read_text()


@pytest.mark.slow
def test_the_output_of_a_daemon_that_neither_answers_nor_detaches_is_returned(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home.parent / "hanging"
    program.write_text("#!/bin/sh\necho 'cannot read the disk' >&2\nwhile :; do sleep 1; done\n")
    program.chmod(0o700)
    monkeypatch.setattr("muster.local.daemon_client.sys.executable", str(program))
    monkeypatch.setattr("muster.local.daemon_client._START_TIMEOUT_S", 5.0)
    with pytest.raises(DaemonError, check=has("cannot read the disk", reason="StartFailed")):
        start_daemon(open_home(home))


@pytest.mark.slow
def test_a_daemon_that_is_not_ready_in_time_is_an_error_that_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = home.parent / "boot-id"
    os.mkfifo(boot_id)  # the daemon waits for a writer, so that it is never ready
    monkeypatch.setenv("MUSTER_BOOT_ID_FILE", str(boot_id))
    monkeypatch.setattr("muster.local.daemon_client._START_TIMEOUT_S", 2.0)
    with pytest.raises(DaemonError, check=has("within 2 s", "daemon.log", reason="StartFailed")):
        start_daemon(open_home(home))


def test_the_daemon_of_a_removed_home_with_a_long_path_is_not_waited_for(home: Path) -> None:
    removed = open_home(home / ("long-" * 30))
    socket_folder = removed.socket().parent
    shutil.rmtree(removed.path)
    DaemonClient(removed, start=False)._wait_for_exit(os.getpid(), timeout_s=60)
    socket_folder.rmdir()


@pytest.mark.parametrize("words", [["jobs"], ["local", "up"]])
def test_a_home_that_cannot_be_written_is_refused_with_exit_code_3(home: Path, words: list[str]) -> None:
    home.mkdir(mode=0o700)
    command = [sys.executable, "-c", "from muster.cli.app import main; main()", *words, "--json"]
    if os.geteuid():
        home.chmod(0o500)
    else:  # root may write regardless of the mode, but not to a file system that is mounted read-only
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(home), *command]
        if subprocess.run([*command[:6], "true"], check=False).returncode:
            pytest.skip("no mount namespaces")
    environ = os.environ | {"MUSTER_HOME": str(home)}
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    error = json.loads(ended.stderr)["error"]
    assert (ended.returncode, error["reason"]) == (3, "HomeUnusable")
    assert str(home) in error["message"]
    assert "daemon.log" not in error["message"]
    assert list(home.iterdir()) == []
