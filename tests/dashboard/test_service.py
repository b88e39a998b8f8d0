"""The dashboard as a Service of a cluster: each user sees what the API server lets the user's own token see."""

from __future__ import annotations

import html
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.controlplane.certificates import Authority
from tests.dashboard.api_server import HOST, Service, TokenApi, service
from tests.state.observed_states import NOW, admitted, named
from tests.visibility.states import in_namespace, leader, two_queues

from muster.dashboard.service import MAX_CONNECTIONS
from muster.dashboard.users import (
    IDLE_S,
    MAX_STREAMS,
    MAX_STREAMS_PER_TOKEN,
    MAX_TOKENS,
    MAX_TOKENS_PER_USER,
    TokenPages,
    TooManyUsers,
)
from muster.http_server import HttpServer

TARGETS = ["/", "/jobs", "/jobs/team-a/a", "/events/jobs", "/static/dashboard.js", "/none"]
STATE = leader(two_queues(in_namespace(named("alices"), "team-a"), in_namespace(named("bobs"), "team-b")))


@pytest.fixture
def api() -> TokenApi:
    return TokenApi(STATE, {"token-a": ("alice", frozenset({"team-a"})), "token-b": ("bob", frozenset({"team-b"}))})


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def served(api: TokenApi, now: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(HttpServer, "close_s", 60.0)  # threads may be slow
    with service(api, tmp_path, lambda: now[0]) as served:
        yield served


def shown(page: str) -> tuple[bool, bool]:
    """Whether the jobs of alice and of bob are on a page."""
    return "alices" in page, "bobs" in page


def test_two_users_at_the_same_time_see_their_own_namespaces(served: Service, api: TokenApi) -> None:
    for _ in range(2):
        for target in ("/jobs", "/pending"):
            assert shown(served.request(target, "token-a").text) == (True, False)
            assert shown(served.request(target, "token-b").text) == (False, True)
    assert "prod · alice" in served.request("/", "token-a").text
    with served.events("/jobs", "token-a") as first, served.events("/jobs", "token-b") as second:
        assert shown(next(first)) == (True, False)
        assert shown(next(second)) == (False, True)
    assert {token for token, _ in api.seen} == {"token-a", "token-b"}


def test_commands_on_a_page_name_the_cluster_and_the_jobs_namespace(served: Service, api: TokenApi) -> None:
    job = in_namespace(admitted("alices"), "team-a")
    running = job.model_copy(update={"status": job.status.model_copy(update={"started_at": NOW, "phase": "Running"})})
    api.state = leader(two_queues(running))
    page = html.unescape(served.request("/jobs/team-a/alices", "token-a").text)
    commands = re.findall(r"<code>(muster .*?)</code>", page)
    assert commands
    assert all(re.match(r"muster --cluster kubernetes \w+ team-a/alices\b", command) for command in commands), commands


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "header", [None, "", "token-a", "Basic YTpi", "Bearer", "Bearer ", "Bearer token-a x", "Bearer tok\ten", "Bearer ü"]
)
def test_a_request_without_a_token_is_not_answered_and_the_api_server_not_asked(
    served: Service, api: TokenApi, target: str, header: str | None
) -> None:
    found = served.request(target, **({} if header is None else {"Authorization": header}))
    assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
    assert "the request has no token" in found.text
    assert shown(found.text) == (False, False)
    assert api.seen == []


def test_two_tokens_in_one_request_are_none(served: Service, api: TokenApi) -> None:
    connection = served.connect()
    connection.putrequest("GET", "/jobs", skip_host=True)
    connection.putheader("Host", HOST)
    for token in ("token-a", "token-b"):
        connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()
    assert api.seen == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_token_that_the_api_server_rejects_shows_nothing(served: Service, target: str) -> None:
    found = served.request(target, "forged-token")
    assert (found.status, found.headers["www-authenticate"]) == (401, "Bearer")
    assert "the API server rejected the token" in found.text
    assert "forged-token" not in found.text
    assert shown(found.text) == (False, False)


def test_a_rejected_token_takes_no_place_of_another(served: Service) -> None:
    for number in range(MAX_TOKENS + 1):
        assert served.request("/jobs", f"forged-{number}").status == 401
    assert served.users._known == {}


def test_after_a_token_was_revoked_its_pages_and_live_updates_end(served: Service, api: TokenApi) -> None:
    with served.events("/jobs", "token-a") as contents:
        assert shown(next(contents)) == (True, False)
        del api.users["token-a"]
        list(contents)  # it ends
    assert served.request("/jobs", "token-a").status == 401
    assert served.users._known == {}
    assert served.request("/jobs", "token-b").status == 200


@pytest.mark.parametrize("code", [403, 404, 500])
def test_live_updates_go_on_after_the_api_server_did_not_tell_the_name_of_the_user(
    served: Service, api: TokenApi, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("muster.dashboard.users._IDENTITY_AGE_S", 0.0)
    with served.events("/jobs", "token-a") as contents:
        assert shown(next(contents)) == (True, False)
        api.failure = code
        assert shown(next(contents)) == (False, False)  # the failure
        api.failure = 0
        assert shown(next(contents)) == (True, False)


def test_while_the_api_server_fails_a_page_says_so_and_then_recovers(served: Service, api: TokenApi) -> None:
    api.failure = 500
    found = served.request("/jobs", "token-a")
    assert (found.status, "the API server has failed" in found.text) == (502, True)
    api.failure = 0
    assert served.request("/jobs", "token-a").status == 200


def test_no_token_is_on_a_page_and_no_cookie_is_set(served: Service) -> None:
    for target in TARGETS:
        found = served.request(target, "token-a", method="HEAD" if "events" in target else "GET")
        assert "token-a" not in found.text
        assert "set-cookie" not in found.headers
        assert found.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("host", [HOST, f"{HOST}:8443", f"{HOST}.", "MUSTER.example.com", "muster.example.com:443"])
def test_its_names_with_any_port_are_the_servers(served: Service, host: str) -> None:
    assert served.request("/jobs", "token-a", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1", f"evil.{HOST}", f"{HOST}.evil", f"{HOST}:x", "a:1:2"]
)
def test_a_request_for_another_host_is_refused(served: Service, api: TokenApi, host: str) -> None:
    assert served.request("/jobs", "token-a", Host=host).status == 421
    assert api.seen == []


def test_probes_need_neither_a_name_nor_a_token(served: Service, api: TokenApi) -> None:
    found = served.request("/healthz", Host="10.0.0.7:8443")
    assert (found.status, found.text) == (200, "ok\n")
    assert api.seen == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT"])
def test_only_get_and_head_are_answered(served: Service, method: str) -> None:
    assert served.request("/jobs", "token-a", method=method).status == 501


def test_plain_http_is_not_answered(served: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=60)
    connection.request("GET", "/healthz")
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.getresponse()
    connection.close()


def test_a_client_that_begins_no_handshake_delays_no_other(served: Service) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port)):
        assert served.request("/jobs", "token-a").status == 200


def test_clients_that_send_no_handshake_or_no_whole_request_take_no_place_of_users_and_probes(served: Service) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.server.port)))
        for _ in range(8):
            slow = served.connect()
            slow.connect()
            stack.callback(slow.close)
            slow.sock.sendall(b"GET /jobs HTTP/1.1\r\nHo")
        assert served.request("/healthz").status == 200
        assert served.request("/jobs", "token-a").status == 200


def test_what_follows_a_request_on_its_connection_is_not_answered(served: Service) -> None:
    """A proxy takes it for the body of the first request, and the answer to it for that to another user's request."""
    connection = served.connect()
    connection.connect()
    head = f"Host: {HOST}\r\nAuthorization: Bearer token-a\r\n"
    second = f"GET /pending HTTP/1.1\r\n{head}\r\n"
    connection.sock.sendall(
        f"GET /static/icon.svg HTTP/1.1\r\n{head}Content-Length: {len(second)}\r\n\r\n{second}".encode()
    )
    received = b""
    while part := connection.sock.recv(65536):
        received += part
    assert received.count(b"HTTP/1.1 ") == 1
    connection.close()


def test_a_new_certificate_is_used_for_new_connections(served: Service, tmp_path: Path) -> None:
    assert not served.certificate.refresh()
    other = Authority(tmp_path / "other")
    issued = other.issue("new", HOST)
    for file in (issued.certificate, issued.key):
        (tmp_path / "tls" / file.name).write_bytes(file.read_bytes())
    assert served.certificate.refresh()
    later = Service(served.server, served.users, served.certificate, other.file)
    assert later.request("/jobs", "token-a").status == 200
    (tmp_path / "tls" / "tls.crt").write_text("no certificate")
    with pytest.raises(OSError, match="PEM"):
        served.certificate.refresh()
    assert later.request("/jobs", "token-a").status == 200


def test_a_token_that_is_not_used_is_forgotten_but_not_while_a_page_is_shown(served: Service, now: list[float]) -> None:
    served.request("/jobs", "token-a")
    with served.events("/jobs", "token-b") as contents:
        next(contents)
        now[0] += IDLE_S
        served.users.drop_idle()
        assert [name for name, _ in served.users._known.values()] == ["bob"]


def test_a_token_that_is_forgotten_while_the_api_server_is_asked_about_it_is_known_again(
    served: Service, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    served.request("/jobs", "token-a")
    user_name = TokenPages.user_name

    def forgotten_meanwhile(pages: TokenPages) -> str:
        monkeypatch.undo()
        now[0] += IDLE_S
        served.users.drop_idle()
        return user_name(pages)

    monkeypatch.setattr(TokenPages, "user_name", forgotten_meanwhile)
    assert served.request("/jobs", "token-a").status == 200
    with served.events("/jobs", "token-a") as contents:
        assert shown(next(contents)) == (True, False)


def test_one_user_with_many_tokens_keeps_the_newest(served: Service, api: TokenApi) -> None:
    served.request("/jobs", "token-b")
    for number in range(MAX_TOKENS_PER_USER + 1):
        api.users[f"more-{number}"] = api.users["token-a"]
        assert served.request("/jobs", f"more-{number}").status == 200
    owners = [name for name, _ in served.users._known.values()]
    assert (owners.count("alice"), owners.count("bob")) == (MAX_TOKENS_PER_USER, 1)


def test_the_service_accounts_of_one_namespace_keep_no_other_user_out(served: Service, api: TokenApi) -> None:
    for number in range(MAX_TOKENS):
        api.users[f"t{number}"] = (f"system:serviceaccount:team-x:robot-{number}", frozenset())
        served.users.pages(f"t{number}")
    for token in ("token-a", "token-b", "token-a"):
        assert served.request("/jobs", token).status == 200
    owners = [name for name, _ in served.users._known.values()]
    assert (len(owners), owners[-2:]) == (MAX_TOKENS, ["bob", "alice"])
    api.users["more"] = ("system:serviceaccount:team-x:robot-more", frozenset())
    assert served.request("/jobs", "more").status == 503, "its namespace has the most"


def test_above_the_limit_of_tokens_idle_ones_are_replaced_and_others_kept(
    served: Service, api: TokenApi, now: list[float]
) -> None:
    for number in range(MAX_TOKENS + 1):
        api.users[f"t{number}"] = (f"user-{number}", frozenset())
    for number in range(MAX_TOKENS):
        served.users.pages(f"t{number}")
    with pytest.raises(TooManyUsers):
        served.users.pages(f"t{MAX_TOKENS}")
    assert served.request("/jobs", f"t{MAX_TOKENS}").status == 503
    assert served.request("/jobs", "t0").status == 200
    now[0] += IDLE_S
    assert served.request("/jobs", f"t{MAX_TOKENS}").status == 200
    assert len(served.users._known) == MAX_TOKENS


def test_streams_are_bounded_for_each_user_and_for_all_together(served: Service, api: TokenApi) -> None:
    def streams(stack: ExitStack, pages: TokenPages, count: int) -> None:
        for _ in range(count):
            stack.enter_context(pages.viewer("/jobs"))

    with ExitStack() as stack:
        streams(stack, served.users.pages("token-a")[1], MAX_STREAMS_PER_TOKEN)
        found = served.request("/events/jobs", "token-a")
        assert (found.status, found.headers["retry-after"]) == (503, "10")
        for number in range(MAX_STREAMS // MAX_STREAMS_PER_TOKEN - 1):
            api.users[f"t{number}"] = (f"user-{number}", frozenset())
            streams(stack, served.users.pages(f"t{number}")[1], MAX_STREAMS_PER_TOKEN)
        assert served.request("/events/jobs", "token-b").status == 503
        assert served.request("/jobs", "token-b").status == 200
    with served.events("/jobs", "token-b") as contents:
        next(contents)


def test_browsers_of_one_user_share_what_is_read(served: Service, api: TokenApi) -> None:
    _, pages = served.users.pages("token-a")
    pages.reader._clock = lambda: 0.0  # answers do not get older
    pages.reader._answers.clear()
    api.seen.clear()
    threads = [threading.Thread(target=served.request, args=("/jobs", "token-a")) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any("/jobs" in path for _, path in api.seen)
    assert len(api.seen) == len(set(api.seen))
