"""Heartbeat requests over real sockets: any program may answer."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.operator.objects import LONG_S

from muster.capture.exchange import CaptureExchange
from muster.heartbeats.auth import SIGNATURE_HEADER, HeartbeatSigner
from muster.tracing.collect.heartbeat_server import HeartbeatServer, HeartbeatSource, ListenAddress
from muster.tracing.shared_folder import SharedFolder
from muster_operator.collectors import capture_client, heartbeat_client
from muster_operator.collectors.heartbeat_client import MAX_RESPONSE_BYTES, HeartbeatTarget, PollResult, poll_all
from muster_operator.collectors.tokens import derive_token

NOT_OURS = "HTTP 401: different token, or clocks differ by more than 300 s"
UNSIGNED = "the answer is not signed with the job's token: another program has the port"
GOOD = {"now": 5.0, "job_uid": "u", "pod": "p", "heartbeat": {"step": 3}}


class RawServer(BaseHTTPRequestHandler):
    """Answers with the status and body that the server has."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.requested.append((self.path, self.headers.get("Authorization")))
        code, body, more = server.answer
        if body is None:
            server.release.wait(30)
            return
        self.send_response(code)
        for name, value in more.items():
            self.send_header(name, value)
        if server.token:
            peer = HeartbeatSigner(server.token, "u", "p")
            signature = peer.sign_response(self.headers["Authorization"], body)
            self.send_header(SIGNATURE_HEADER, server.change_signature(signature, self.headers["Authorization"]))
        self.end_headers()
        self.wfile.write(server.change_body(body))

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def raw_server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), RawServer)
    server.daemon_threads = True
    server.requested, server.release, server.token = [], threading.Event(), "t" * 20
    server.change_body = lambda body: body
    server.change_signature = lambda signature, request: signature
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


PATIENT = capture_client.ExchangeLimits(LONG_S, timeout_s=LONG_S)


def target(port: int, uid: str = "u", token: str = "t" * 20, host: str = "127.0.0.1") -> HeartbeatTarget:
    return HeartbeatTarget(uid, "p", host, port, token, durable=True)


def poll(raw_server: Any, code: int, body: bytes | None, **more: str) -> PollResult:
    raw_server.answer = code, body, more
    (outcome,) = poll_all([target(raw_server.server_address[1])], LONG_S, LONG_S)
    return outcome


def test_the_collectors_own_endpoint_is_understood(tmp_path: Path) -> None:
    (tmp_path / "heartbeats").mkdir()
    (tmp_path / "heartbeats" / "rank-0.json").write_text('{"step": 7, "at": 3.0}')
    token = derive_token(b"k" * 32, "u")
    endpoint = HeartbeatServer(
        ListenAddress("127.0.0.1", 0), token, HeartbeatSource(SharedFolder(tmp_path), "u", "p"), print
    )
    endpoint.start()
    try:
        port = endpoint.wait_for_port(20.0)
        wanted = [target(port, token=token), target(port), target(port, uid="other", token=token)]
        outcomes = poll_all(wanted, LONG_S, LONG_S)
    finally:
        endpoint.stop()
    assert outcomes[0].response is not None
    assert outcomes[0].response.heartbeat is not None
    assert outcomes[0].response.heartbeat["step"] == 7
    assert [outcome.error for outcome in outcomes[1:]] == [NOT_OURS, NOT_OURS]


def test_an_answer_signed_with_the_token_is_accepted(raw_server: Any) -> None:
    outcome = poll(raw_server, 200, json.dumps(GOOD).encode())
    assert outcome.response is not None
    assert outcome.response.heartbeat == {"step": 3}
    ((path, authorization),) = raw_server.requested
    assert path == "/heartbeat"
    assert HeartbeatSigner("t" * 20, "u", "p").verify_request(path, authorization, time.time())


def test_another_program_at_the_port_gets_no_token_and_its_answer_is_rejected(raw_server: Any) -> None:
    raw_server.token = "another token of theirs"
    outcome = poll(raw_server, 200, json.dumps(GOOD).encode())
    assert (outcome.response, outcome.error) == (None, UNSIGNED)
    assert "t" * 20 not in str(raw_server.requested)


def test_a_replayed_answer_is_rejected(raw_server: Any, tmp_path: Path) -> None:
    """Nor an answer to another request, as a program that relays requests would give."""
    peer = HeartbeatSigner("t" * 20, "u", "p")
    body = json.dumps(GOOD).encode()
    before = peer.authorization("/heartbeat", time.time(), "0" * 32)
    raw_server.token = ""
    outcome = poll(raw_server, 200, body, **{SIGNATURE_HEADER: peer.sign_response(before, body)})
    assert outcome.response is None


def test_an_answer_changed_after_it_was_signed_is_rejected(raw_server: Any) -> None:
    raw_server.change_body = lambda body: body.replace(b'"step": 3', b'"step": 9')
    outcome = poll(raw_server, 200, json.dumps(GOOD).encode())
    assert (outcome.response, outcome.error) == (None, UNSIGNED)


def test_the_requests_own_signature_as_that_of_the_answer_is_rejected(raw_server: Any) -> None:
    """A program without the token can only send back what it received."""
    raw_server.change_signature = lambda signature, request: request.rpartition("signature=")[2]
    outcome = poll(raw_server, 200, json.dumps(GOOD).encode())
    assert (outcome.response, outcome.error) == (None, UNSIGNED)


DEEP = (
    b'{"now": 5.0, "job_uid": "u", "pod": "p", "heartbeat": {"step": 3, "odd": ' + b"[" * 8_000 + b"]" * 8_000 + b"}}"
)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"now": "x"}', b"\xff", b'{"now": 1}', DEEP, b'["\\ud800"]'])
def test_an_answer_that_is_no_heartbeat_is_rejected(raw_server: Any, body: bytes) -> None:
    assert poll(raw_server, 200, body) == PollResult(
        target(raw_server.server_address[1]), None, "the answer is not a heartbeat"
    )


def test_an_exception_for_one_answer_hides_no_other(raw_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_one = heartbeat_client._poll

    async def ask_with_a_bug(session: Any, requested: HeartbeatTarget) -> PollResult:
        if requested.uid == "odd":
            raise KeyError("a bug")
        return await ask_one(session, requested)

    monkeypatch.setattr(heartbeat_client, "_poll", ask_with_a_bug)
    raw_server.answer = 200, json.dumps(GOOD).encode(), {}
    port = raw_server.server_address[1]
    first, second = poll_all([target(port, uid="odd"), target(port)], LONG_S, LONG_S)
    assert first == PollResult(target(port, uid="odd"), None, "invalid answer: KeyError")
    assert second.response is not None


def test_the_size_of_an_answer_is_limited(raw_server: Any) -> None:
    assert f"exceeds {MAX_RESPONSE_BYTES} bytes" in poll(raw_server, 200, b" " * 10 * MAX_RESPONSE_BYTES).error


def test_the_size_of_an_answer_to_a_capture_is_limited(raw_server: Any) -> None:
    raw_server.answer = 200, b" " * ((256 << 10) + 1), {}
    found = capture_client.exchange_all([target(raw_server.server_address[1])], CaptureExchange(id="c"), PATIENT)
    (why,) = found.seen.unreachable
    assert why.endswith(f"exceeds {256 << 10} bytes")
    assert found.size == 0


def test_no_redirect_is_followed(raw_server: Any) -> None:
    outcome = poll(raw_server, 302, b"", Location=f"http://127.0.0.1:{raw_server.server_address[1]}/elsewhere")
    assert outcome.error == "HTTP 302"
    assert len(raw_server.requested) == 1


def test_a_timeout_of_one_target_delays_no_other(raw_server: Any) -> None:
    raw_server.answer = 200, None, {}
    slow = target(raw_server.server_address[1], uid="slow")
    unreachable = target(1, uid="unreachable")
    outcomes = {outcome.target.uid: outcome for outcome in poll_all([slow, unreachable], LONG_S, 0.3)}
    assert outcomes["slow"].error == "no answer within 0.3 s"
    assert outcomes["unreachable"].response is None


def test_a_target_not_started_in_time_has_no_result() -> None:
    assert poll_all([target(1)], 0.0) == []
    assert poll_all([], LONG_S) == []


def test_polling_works_in_a_thread_beside_a_running_loop() -> None:
    async def main() -> list[PollResult]:
        return await asyncio.to_thread(poll_all, [target(1)], LONG_S)

    (outcome,) = asyncio.run(main())
    assert outcome.response is None


def test_tokens_differ_between_jobs_and_are_derived_from_the_key() -> None:
    assert derive_token(b"k" * 32, "a") == derive_token(b"k" * 32, "a")
    assert len({derive_token(key * 32, uid) for key in (b"k", b"l") for uid in ("a", "b")}) == 4
    assert len(derive_token(b"k" * 32, "a")) >= 40


def test_of_an_answer_only_known_numbers_and_a_short_text_are_kept(raw_server: Any) -> None:
    """The answers of all jobs are in memory at the same time."""
    odd = {"more": [0] * 1000, "loss": "x" * 1000, "step": 3, "at": 4.0, "checkpoint_step": [1]}
    answer = GOOD | {"heartbeat": odd, "checkpoint": {"step": 2, "at": {}, "path": "p"}, "unreadable": ["u" * 600] * 9}
    outcome = poll(raw_server, 200, json.dumps(answer).encode())
    assert outcome.response is not None
    assert (outcome.response.heartbeat, outcome.response.checkpoint) == ({"step": 3, "at": 4.0}, {"step": 2})
    assert [len(text) for text in outcome.response.unreadable] == [500]


def test_silent_collectors_of_one_namespace_leave_connections_to_others(raw_server: Any) -> None:
    raw_server.answer = 200, json.dumps(GOOD).encode(), {}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        theirs = [replace(target(port, f"u-{number}"), namespace="a") for number in range(200)]
        targets = [*theirs, replace(target(raw_server.server_address[1]), namespace="b")]
        polling = threading.Thread(target=poll_all, args=(targets, 10 * LONG_S, 10 * LONG_S), daemon=True)
        polling.start()
        until = time.monotonic() + LONG_S
        while not raw_server.requested and time.monotonic() < until:
            time.sleep(0.01)
    assert raw_server.requested  # while none of the others has an answer
    polling.join(LONG_S)
