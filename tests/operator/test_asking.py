"""Asking collectors, over real sockets: whoever answers may be anybody's program."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.operator.conftest import LONG_S

from muster.heartbeat_auth import ANSWER_HEADER, Peer
from muster.tracing.endpoint import Address, Endpoint, Subject
from muster.tracing.sharedfolder import SharedFolder
from muster_operator.collectors import asking
from muster_operator.collectors.asking import LARGEST_BYTES, Outcome, Target, ask_all
from muster_operator.collectors.tokens import token_of

NOT_OURS = "it answers with 401: another token, or clocks 300 s apart"
GOOD = {"now": 5.0, "job_uid": "u", "pod": "p", "beat": {"step": 3}}


class Odd(BaseHTTPRequestHandler):
    """Answers with whatever the server has been given: a status, and a body."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        code, body, more = server.answer
        if body is None:
            server.release.wait(30)
            return
        self.send_response(code)
        for name, value in more.items():
            self.send_header(name, value)
        if server.token:
            peer = Peer(server.token, "u", "p")
            self.send_header(ANSWER_HEADER, peer.answer(self.headers["Authorization"], body))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def odd() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    server.asked, server.release, server.token = [], threading.Event(), "t" * 20
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def target(port: int, uid: str = "u", token: str = "t" * 20, host: str = "127.0.0.1") -> Target:
    return Target(uid, "p", host, port, token, durable=True)


def ask(odd: Any, code: int, body: bytes | None, **more: str) -> Outcome:
    odd.answer = code, body, more
    (outcome,) = ask_all([target(odd.server_address[1])], LONG_S)
    return outcome


def test_the_collectors_own_endpoint_is_understood(tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    (tmp_path / "beats" / "rank-0.json").write_text('{"step": 7, "at": 3.0}')
    token = token_of(b"k" * 32, "u")
    endpoint = Endpoint(Address("127.0.0.1", 0), token, Subject(SharedFolder(tmp_path), "u", "p"), print)
    endpoint.start()
    try:
        port = endpoint.port(20.0)
        outcomes = ask_all([target(port, token=token), target(port), target(port, uid="other", token=token)], LONG_S)
    finally:
        endpoint.stop()
    assert outcomes[0].answer is not None
    assert outcomes[0].answer.beat is not None
    assert outcomes[0].answer.beat["step"] == 7
    assert [outcome.why for outcome in outcomes[1:]] == [NOT_OURS, NOT_OURS]


def test_an_answer_is_taken_and_the_token_is_what_was_asked_with(odd: Any) -> None:
    outcome = ask(odd, 200, json.dumps(GOOD).encode())
    assert outcome.answer is not None
    assert outcome.answer.beat == {"step": 3}
    ((path, authorization),) = odd.asked
    assert path == "/beat"
    assert Peer("t" * 20, "u", "p").accepts(path, authorization, time.time())


def test_another_program_at_the_port_learns_no_token_and_its_answer_is_not_believed(odd: Any) -> None:
    odd.token = "another token of theirs"
    outcome = ask(odd, 200, json.dumps(GOOD).encode())
    assert (outcome.answer, outcome.why) == (
        None,
        "its answer is not signed with the job's token: another program has the port",
    )
    assert "t" * 20 not in str(odd.asked)


def test_an_answer_of_before_is_not_believed_again(odd: Any, tmp_path: Path) -> None:
    """Nor one that was made for another request, as where a program passes requests on."""
    peer = Peer("t" * 20, "u", "p")
    body = json.dumps(GOOD).encode()
    before = peer.request("/beat", time.time(), "0" * 32)
    odd.token = ""
    outcome = ask(odd, 200, body, **{ANSWER_HEADER: peer.answer(before, body)})
    assert outcome.answer is None


DEEP = b'{"now": 5.0, "job_uid": "u", "pod": "p", "beat": {"step": 3, "odd": ' + b"[" * 15_000 + b"]" * 15_000 + b"}}"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"now": "x"}', b"\xff", b'{"now": 1}', DEEP, b'["\\ud800"]'])
def test_an_answer_that_is_none_is_said_to_be_none(odd: Any, body: bytes) -> None:
    assert ask(odd, 200, body) == Outcome(target(odd.server_address[1]), None, "its answer is none")


def test_a_bug_that_one_answer_meets_hides_no_other_answer(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_one = asking._ask

    async def ask_with_a_bug(session: Any, asked: Target) -> Outcome:
        if asked.uid == "odd":
            raise KeyError("a bug")
        return await ask_one(session, asked)

    monkeypatch.setattr(asking, "_ask", ask_with_a_bug)
    odd.answer = 200, json.dumps(GOOD).encode(), {}
    port = odd.server_address[1]
    first, second = ask_all([target(port, uid="odd"), target(port)], LONG_S)
    assert first == Outcome(target(port, uid="odd"), None, "its answer cannot be taken: KeyError")
    assert second.answer is not None


def test_no_more_is_read_than_an_answer_can_have(odd: Any) -> None:
    assert f"more than {LARGEST_BYTES} bytes" in ask(odd, 200, b" " * 10 * LARGEST_BYTES).why


def test_no_redirect_is_followed(odd: Any) -> None:
    outcome = ask(odd, 302, b"", Location=f"http://127.0.0.1:{odd.server_address[1]}/elsewhere")
    assert outcome.why == "it answers with 302"
    assert len(odd.asked) == 1


def test_who_does_not_answer_is_given_up_and_nobody_else_waits(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.3)
    odd.answer = 200, None, {}
    slow = target(odd.server_address[1], uid="slow")
    nobody = target(1, uid="nobody")
    outcomes = {outcome.target.uid: outcome for outcome in ask_all([slow, nobody], LONG_S)}
    assert outcomes["slow"].why == "no answer within 0.3 s"
    assert outcomes["nobody"].answer is None


def test_whose_turn_does_not_come_in_time_has_no_outcome() -> None:
    assert ask_all([target(1)], 0.0) == []
    assert ask_all([], LONG_S) == []


def test_it_can_be_asked_from_a_thread_beside_a_running_loop() -> None:
    async def main() -> list[Outcome]:
        return await asyncio.to_thread(ask_all, [target(1)], LONG_S)

    (outcome,) = asyncio.run(main())
    assert outcome.answer is None


def test_tokens_differ_from_job_to_job_and_follow_from_the_key() -> None:
    assert token_of(b"k" * 32, "a") == token_of(b"k" * 32, "a")
    assert len({token_of(key * 32, uid) for key in (b"k", b"l") for uid in ("a", "b")}) == 4
    assert len(token_of(b"k" * 32, "a")) >= 40
