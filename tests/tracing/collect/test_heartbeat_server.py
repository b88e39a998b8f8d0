"""Responses of a collector's heartbeat server over real sockets."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.local.support import eventually
from tests.tracing.endpoints import PEER, TOKEN, ask, listening, signed

from muster.heartbeats.auth import MAX_REQUEST_AGE_S, HeartbeatSigner
from muster.local.nodes import free_port
from muster.tracing.collect import heartbeat_server
from muster.tracing.collect.heartbeat_server import (
    MAX_FILE_BYTES,
    MAX_REQUEST_BYTES,
    HeartbeatServer,
    HeartbeatSource,
    ListenAddress,
)
from muster.tracing.collector import main
from muster.tracing.shared_folder import SharedFolder

NOTHING: dict[str, Any] = {"heartbeat": None, "checkpoint": None, "unreadable": []}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with listening(tmp_path) as number:
        yield number


def write(run_dir: Path, name: str, text: str | bytes) -> None:
    path = run_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def unreadable(port: int) -> list[str]:
    code, answer = ask(port)
    assert (code, answer["heartbeat"]) == (200, None)
    found: list[str] = answer["unreadable"]
    return found


def test_a_response_has_the_heartbeat_of_rank_0_and_the_newest_checkpoint(port: int, tmp_path: Path) -> None:
    written = {"rank": 0, "world_size": 2, "attempt": 1, "step": 7, "loss": 2.5, "at": 100.5, "phase": "train"}
    write(tmp_path, "heartbeats/rank-0.json", json.dumps(written))
    write(tmp_path, "heartbeats/rank-1.json", json.dumps({**written, "rank": 1, "step": 9}))
    write(tmp_path, "checkpoints/latest", '{"step": 5, "attempt": 1, "path": "step-5", "at": 90.0}')
    before = time.time()
    code, answer = ask(port)
    assert code == 200
    assert before <= answer["now"] <= time.time()
    assert (answer["job_uid"], answer["pod"]) == ("uid-1", "pod-0")
    assert {name: value for name, value in answer["heartbeat"].items() if value is not None} == written
    assert answer["checkpoint"] == {"step": 5, "at": 90.0, "steps": None, "loss": None}
    assert answer["unreadable"] == []


def test_a_checkpoint_that_the_launcher_found_counts_beside_a_file_of_another_program(
    port: int, tmp_path: Path
) -> None:
    found = {"format": "DeepSpeed", "path": "/r/checkpoints/global_step9", "at": 95.0, "step": 9, "attempt": 0}
    write(tmp_path, "checkpoints/latest", "global_step9")
    write(tmp_path, "checkpoint.json", json.dumps({**found, "steps": 60, "loss": 2.5}))
    _, answer = ask(port)
    assert answer["checkpoint"] == {"step": 9, "at": 95.0, "steps": 60, "loss": 2.5}
    assert (answer["heartbeat"], answer["unreadable"]) == (None, [])
    (tmp_path / "checkpoint.json").unlink()
    _, answer = ask(port)
    assert answer["checkpoint"] is None
    assert [text.partition(":")[0] for text in answer["unreadable"]] == ["checkpoints/latest"]


def test_a_missing_heartbeat_is_not_an_error(port: int) -> None:
    code, answer = ask(port)
    assert code == 200
    assert {name: answer[name] for name in NOTHING} == NOTHING


@pytest.mark.parametrize(
    "wrong",
    [
        "Authorization: Bearer " + TOKEN,
        "Authorization: ü",
        "X: ",
        *(
            f"Authorization: {header}"
            for header in (
                signed(HeartbeatSigner(TOKEN[:-1], "uid-1", "pod-0")),
                signed(HeartbeatSigner("", "uid-1", "pod-0")),
                signed(HeartbeatSigner(TOKEN, "uid-2", "pod-0")),
                signed(HeartbeatSigner(TOKEN, "uid-1", "pod-1")),
                signed(path="/healthz"),
                signed(ahead_s=-MAX_REQUEST_AGE_S - 60),
                signed(ahead_s=1e6),
                signed()[:-1],
                signed().replace("nonce=", "nonce=0"),
            )
        ),
    ],
)
def test_a_request_without_a_current_signature_for_this_pod_gets_401(port: int, wrong: str) -> None:
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    connection.sendall(b"GET /heartbeat HTTP/1.0\r\n" + wrong.encode() + b"\r\n\r\n")
    answer = connection.makefile("rb").read()
    connection.close()
    assert b" 401 " in answer.splitlines()[0]
    assert b"uid-1" not in answer


def test_a_probe_needs_no_token_and_gets_no_data(port: int) -> None:
    assert ask(port, "/healthz", authorization="") == (200, {"ok": True})


def test_other_paths_and_methods_are_rejected(port: int) -> None:
    assert ask(port, "/../etc/passwd")[0] == 404
    assert ask(port, verb="POST")[0] == 405
    assert ask(port, body="x")[0] == 413


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\x00 / HTTP/9\r\n:\r\n\r\n"])
def test_an_invalid_request_gets_an_error(port: int, request_: bytes) -> None:
    connection = socket.create_connection(("127.0.0.1", port), timeout=300)
    connection.sendall(request_)
    assert connection.makefile("rb").read().split()[1] in (b"401", b"405")
    connection.close()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', b"\xff\xfe", b"[" * 50_000])
def test_a_corrupt_heartbeat_is_listed_as_unreadable(port: int, tmp_path: Path, text: str | bytes) -> None:
    write(tmp_path, "heartbeats/rank-0.json", text)
    assert unreadable(port) == ["heartbeats/rank-0.json: must be a JSON object"]


def test_a_heartbeat_above_the_size_limit_is_listed_as_unreadable(port: int, tmp_path: Path) -> None:
    write(tmp_path, "heartbeats/rank-0.json", json.dumps({"step": 1, "more": "x" * MAX_FILE_BYTES}))
    (reason,) = unreadable(port)
    assert f"at most {MAX_FILE_BYTES} bytes" in reason


@pytest.mark.parametrize("kind", ["a FIFO", "a folder", "a symbolic link", "a file with 2 hard links"])
def test_an_irregular_file_is_not_read_and_does_not_block(port: int, tmp_path: Path, kind: str) -> None:
    write(tmp_path, "elsewhere", '{"step": 1}')
    (tmp_path / "heartbeats").mkdir()
    heartbeat = tmp_path / "heartbeats" / "rank-0.json"
    if kind == "a FIFO":
        os.mkfifo(heartbeat)
    elif kind == "a folder":
        heartbeat.mkdir()
    elif kind == "a symbolic link":
        heartbeat.symlink_to(tmp_path / "elsewhere")
    else:
        heartbeat.hardlink_to(tmp_path / "elsewhere")
    assert unreadable(port) == [f"heartbeats/rank-0.json: must be a regular file; got {kind}"]


def test_only_numbers_and_known_phases_are_passed_on(port: int, tmp_path: Path) -> None:
    text = '{"step": 3, "loss": NaN, "at": "now", "phase": "secret", "token": "word", "rank": true, "steps": 1e999}'
    write(tmp_path, "heartbeats/rank-0.json", text)
    heartbeat = ask(port)[1]["heartbeat"]
    assert {name: value for name, value in heartbeat.items() if value is not None} == {"step": 3}


@pytest.mark.parametrize("sent", [b"GET /heartbeat HTTP/1.0\r\nX: ", b"x" * (MAX_REQUEST_BYTES + 1)])
def test_a_connection_without_a_complete_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(heartbeat_server, "REQUEST_TIMEOUT_S", 0.5)
    with listening(tmp_path) as port, socket.create_connection(("127.0.0.1", port), timeout=60) as idle:
        idle.sendall(sent)
        with suppress(ConnectionError):
            assert idle.recv(1) == b""


def test_a_port_in_use_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_server, "_RETRY_S", 0.05)
    logged = threading.Event()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        one = HeartbeatServer(
            ListenAddress("127.0.0.1", number),
            TOKEN,
            HeartbeatSource(SharedFolder(tmp_path)),
            lambda message: logged.set(),
        )
        one.start()
        assert logged.wait(60)
    assert one.wait_for_port(60.0) == number
    one.stop()


def test_a_server_stopped_at_once_ends(tmp_path: Path) -> None:
    one = HeartbeatServer(ListenAddress("127.0.0.1", 0), TOKEN, HeartbeatSource(SharedFolder(tmp_path)), print)
    one.start()
    one.stop()
    eventually(lambda: not one._thread.is_alive())


def test_a_port_without_token_and_an_unreadable_secret_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short"
    short.write_text("short")
    arguments = ["--run-dir", str(tmp_path), "--role", "r", "--index", "0", "--port", "0"]
    for wrong, why in (
        ([], "requires --token-file with a token of at least 16 characters"),
        (["--token-file", str(short)], "requires --token-file with a token of at least 16 characters"),
        (["--token-file", str(tmp_path / "none")], "cannot read a secret: FileNotFoundError"),
        (["--mount", "/elsewhere"], "--run-dir must be below --mount /elsewhere"),
        (["--port", "70000"], "must be a port"),
        (["--port", "9" * 5000], "must be a port"),
        (["--address", "localhost"], "must be an IP address"),
    ):
        with pytest.raises(SystemExit):
            main([*arguments, *wrong])
        assert why in capsys.readouterr().err


@pytest.mark.slow
def test_the_process_serves_heartbeats_from_start_to_end(tmp_path: Path) -> None:
    number = free_port((), random.Random())  # outside of the range of ephemeral ports
    write(tmp_path, "heartbeats/rank-0.json", '{"step": 4, "at": 1.0}')
    command = [sys.executable, "-m", "muster.tracing.collector", "--run-dir", str(tmp_path), "--role", "r", "--index"]
    write(tmp_path, "token", TOKEN)
    secret = ("--token-file", str(tmp_path / "token"))
    environment = {**os.environ, "MUSTER_JOB_UID": PEER.job_uid, "MUSTER_POD": PEER.pod}
    process = subprocess.Popen([*command, "0", "--port", str(number), *secret, "--open-spool"], env=environment)
    try:

        def answers() -> bool:
            try:
                return bool(ask(number)[1]["heartbeat"]["step"] == 4)
            except OSError:
                return False

        eventually(answers)
        if sys.platform == "linux" and os.geteuid() == 0:  # the process is not dumpable
            shown = Path(f"/proc/{process.pid}")
            assert TOKEN not in (shown / "environ").read_text() + (shown / "cmdline").read_text()
        assert (tmp_path / "traces" / "spool").stat().st_mode & 0o7777 == 0o1777
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    finally:
        process.kill()
        process.wait()


def test_a_curve_is_signed_and_has_the_steps_of_rank_0(port: int, tmp_path: Path) -> None:
    write(tmp_path, "metrics/rank-0.jsonl", '{"step": 1, "loss": 5.0}\n{"step": 2, "step_time_s": 0.5}\n')
    code, answer = ask(port, "/curve")
    assert (code, answer["job_uid"], answer["pod"]) == (200, "uid-1", "pod-0")
    assert answer["points"] == [[1, 5.0, None], [2, None, 0.5]]
    assert ask(port, "/curve", signed())[0] == 401, "signed for another path"
    assert ask(port, "/curve", "")[0] == 401


def test_a_curve_that_cannot_be_read_says_why(port: int, tmp_path: Path) -> None:
    (tmp_path / "metrics" / "rank-0.jsonl").mkdir(parents=True)
    code, answer = ask(port, "/curve")
    assert code == 422
    assert "rank-0.jsonl" in answer["error"]
