"""Who may use the dashboard: the browser that got its address, on this host, and no other."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.dashboard.serving import ReadStateClient, cookie, get, request, serving
from tests.state.observed_states import named
from tests.visibility.states import leader, two_queues

from muster.dashboard.server import DashboardServer

TARGETS = ["/", "/jobs", "/events/jobs", "/static/dashboard.js", "/none"]

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says whose a connection is")


@pytest.fixture
def server() -> Iterator[DashboardServer]:
    with serving(ReadStateClient(state=leader(two_queues(named("secret-job"))))) as server:
        yield server


def test_the_printed_address_begins_a_session_and_the_pages_follow_without_the_token(server: DashboardServer) -> None:
    url = urlsplit(server.url)
    entered = request(server, f"{url.path}?{url.query}")
    assert entered.status == 200
    assert "secret-job" not in entered.text
    token = url.query.removeprefix("token=")
    assert token not in entered.text
    name, _, attributes = entered.headers["set-cookie"].partition(";")
    assert {part.strip() for part in attributes.split(";")} == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert token not in name
    page = request(server, "/", Cookie=f'other="a b; c"; {name}; last=1')
    assert (page.status, "secret-job" in page.text) == (200, True)
    assert token not in page.text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("session", ["", "x", "{session}x", "{short}"])
def test_without_the_session_nothing_is_answered(server: DashboardServer, target: str, session: str) -> None:
    value = session.format(session=server.session, short=server.session[:-1])
    found = request(server, target, Cookie=f"{server.cookie}={value}")
    assert found.status == 403
    assert "secret-job" not in found.text
    assert "set-cookie" not in found.headers
    assert server.session not in found.text


@pytest.mark.parametrize("token", ["", "x", "{token}x", "{short}", "%00", "{token}&token=x"])
def test_a_wrong_token_begins_no_session(server: DashboardServer, token: str) -> None:
    right = urlsplit(server.url).query.removeprefix("token=")
    found = request(server, f"/?token={token.format(token=right, short=right[:-1])}")
    assert (found.status, "set-cookie" in found.headers) == (403, False)


def test_the_address_for_a_command_line_is_valid_once(server: DashboardServer) -> None:
    url = urlsplit(server.single_use_url())
    assert [request(server, f"/?{url.query}").status for _ in range(2)] == [200, 403]
    again = urlsplit(server.url)
    assert [request(server, f"/?{again.query}").status for _ in range(2)] == [200, 200]


@LINUX
def test_another_user_who_sees_the_command_line_of_the_browser_cannot_be_quicker_than_the_browser(
    server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = urlsplit(server.single_use_url())
    with monkeypatch.context() as patched:  # the client is another user than the server's
        patched.setattr("muster.http_server.os.geteuid", lambda: os.getuid() + 1)
        found = request(server, f"/?{url.query}")
        assert (found.status, "set-cookie" in found.headers) == (403, False)
    assert request(server, f"/?{url.query}").status == 200


@LINUX
@pytest.mark.parametrize(
    ("family", "own", "server_host"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "127.0.0.2", "127.0.0.1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_the_user_of_a_browser_is_known_whatever_its_own_address_is(
    server: DashboardServer, family: socket.AddressFamily, own: str, server_host: str
) -> None:
    url = urlsplit(server.single_use_url())
    with socket.socket(family) as client:
        client.bind((own, 0))
        client.connect((server_host, server.port))
        client.sendall(f"GET /?{url.query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


@LINUX
def test_other_hosts_cannot_connect(server: DashboardServer) -> None:
    """It listens on 127.0.0.1 alone; on Linux all of 127.0.0.0/8 leads to this host."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=30)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "localhost:1:2", "localhost:x", "[::1]"],
)
def test_a_request_for_another_host_is_refused_although_its_session_is_right(
    server: DashboardServer, host: str
) -> None:
    """DNS rebinding: a page of evil.example makes its own name resolve to 127.0.0.1."""
    session = cookie(server)
    for target in (*TARGETS, f"/?{urlsplit(server.url).query}"):
        found = request(server, target, Host=host.format(port=server.port), Cookie=session)
        assert (found.status, "set-cookie" in found.headers) == (421, False)


def test_a_forwarded_port_may_have_another_number(server: DashboardServer) -> None:
    assert request(server, "/", Host="localhost:8080", Cookie=cookie(server)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_reads_are_answered(server: DashboardServer, method: str) -> None:
    assert request(server, "/", method=method, Cookie=cookie(server)).status == 501


def test_head_has_the_headers_of_get_without_a_body(server: DashboardServer) -> None:
    session = cookie(server)
    whole, head = (request(server, "/jobs", method=method, Cookie=session) for method in ("GET", "HEAD"))
    assert (head.status, head.text) == (200, "")
    assert head.headers.keys() == whole.headers.keys()


@pytest.mark.parametrize("target", [*TARGETS, "/?token=x"])
def test_every_response_forbids_scripts_of_others_frames_caches_and_referrers(
    server: DashboardServer, target: str
) -> None:
    headers = get(server, target).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "style-src": "'self'", "script-src": "'self'", "img-src": "'self'",
        "connect-src": "'self'", "form-action": "'self'", "base-uri": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
