"""What the daemon's server logs, and which requests it refuses before they reach the service."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.local.support import eventually

from muster.errors import DaemonUnavailable, InvalidSpec, MusterError
from muster.local.daemon_client import request
from muster.local.environment import MAX_ARGUMENT_BYTES
from muster.local.server import DaemonServer


def fail(*arguments: object) -> None:
    raise ZeroDivisionError("a defect")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DaemonServer]:
    """A server whose service has a defect, and submits nothing."""
    service: Any = SimpleNamespace(jobs=fail, submit=lambda jobs, dry_run, environments: [])
    requests = SimpleNamespace(begin_request=lambda: None, end_request=lambda may_have_changed: None)
    loop: Any = SimpleNamespace(requests=requests, status=dict, owns_home=lambda: True, wake=lambda: None)
    server = DaemonServer(tmp_path / "socket", service, loop)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def send(server: DaemonServer, text: bytes) -> bytes:
    """The response to a request of these bytes, until the server closes the connection."""
    with closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(server.server_address))
        connection.sendall(text)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def logged_errors(caplog: pytest.LogCaptureFixture) -> list[type[BaseException] | None]:
    """The types of the errors that were logged with a traceback."""
    return [record.exc_info[0] for record in caplog.records if record.exc_info]


def test_an_internal_error_is_logged_with_its_traceback(server: DaemonServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "muster.local"), pytest.raises(MusterError, match=r"see daemon\.log"):
        request(Path(str(server.server_address)), "GET", "/v3/jobs")
    assert logged_errors(caplog) == [ZeroDivisionError]


@pytest.mark.parametrize("call", [fail, lambda *arguments: []])
def test_a_submit_while_the_home_is_removed_is_not_accepted_and_no_internal_error(
    server: DaemonServer, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    owned = iter([True, False])
    monkeypatch.setattr(server.loop, "owns_home", lambda: next(owned))
    monkeypatch.setattr(server.service, "submit", call)
    with pytest.raises(DaemonUnavailable, match="home was removed"):
        request(Path(str(server.server_address)), "POST", "/v3/jobs", {"objects": [], "environments": []})


def test_the_socket_of_the_daemon_of_a_new_home_is_not_deleted(
    server: DaemonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(str(server.server_address))
    monkeypatch.setattr(server.loop, "owns_home", lambda: False)
    server.remove_socket()
    assert path.exists()
    monkeypatch.setattr(server.loop, "owns_home", lambda: True)
    server.remove_socket()
    assert not path.exists()
    path.mkdir()
    server.remove_socket()
    assert path.exists(), "what cannot be deleted is left"


def test_an_error_outside_of_the_service_is_logged_and_a_closed_connection_is_not(
    server: DaemonServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([BrokenPipeError(), TimeoutError(), ZeroDivisionError()])
    raised = []

    def begin() -> None:
        raised.append(error := next(errors))
        raise error

    monkeypatch.setattr(server.loop.requests, "begin_request", begin)
    with caplog.at_level(logging.ERROR, "muster.local"):
        for _ in range(3):
            assert send(server, b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") == b""
        eventually(lambda: len(raised) == 3 and logged_errors(caplog))
    assert logged_errors(caplog) == [ZeroDivisionError]


@pytest.mark.parametrize("length", ["1" * 5000, "-1", "1_0", "\u0662", "99999999999"])
def test_an_invalid_content_length_is_refused(server: DaemonServer, length: str) -> None:
    head = f"POST /v3/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    response = send(server, head)
    assert response.startswith(b"HTTP/1.1 422 ")
    assert b"Content-Length: must be at most" in response
    assert len(response) < 1000


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 0\r\nContent-Length: 32",
        "Content-Length: 32\r\nContent-Length: 32",
        "Transfer-Encoding: chunked",
        "Content-Length: 32\r\nTransfer-Encoding: chunked",
        "Content-Length : 32",
    ],
)
def test_a_request_whose_body_may_end_in_two_places_is_refused(server: DaemonServer, headers: str) -> None:
    smuggled = b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n"
    response = send(server, f"POST /v3/jobs HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode() + smuggled)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert response.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"A": "\ud800"}, "'A': must be valid Unicode"),
        ({"A\ud800": "1"}, "must be valid Unicode"),
        ({"A": "b\0c"}, "'A': must not contain the character NUL"),
        ({"A": "b" * (MAX_ARGUMENT_BYTES - 1)}, f"'A': must have at most {MAX_ARGUMENT_BYTES} bytes"),
        ({"A": 5}, "'A': must be a string"),
        ({"": "1"}, "'': must be a name without '='"),
        ({"A=B": "1"}, "'A=B': must be a name without '='"),
    ],
)
def test_an_environment_with_which_no_process_can_start_is_refused(
    server: DaemonServer, environment: dict[str, object], problem: str
) -> None:
    body = {"objects": [{}], "environments": [{"PATH": "/bin", **environment}]}
    with pytest.raises(InvalidSpec) as error:
        request(Path(str(server.server_address)), "POST", "/v3/jobs", body)
    assert error.value.field == "environments[0]"
    assert problem in str(error.value)


def test_an_environment_with_which_a_process_can_start_is_accepted(server: DaemonServer) -> None:
    environment = {"PATH": "/bin", "BYTES": "\udcff", "LONG": "b" * (MAX_ARGUMENT_BYTES - len("LONG="))}
    body: dict[str, object] = {"objects": [], "environments": []}
    assert request(Path(str(server.server_address)), "POST", "/v3/jobs", body) == []
    body = {"objects": [{}], "environments": [environment]}
    with pytest.raises(InvalidSpec) as error:  # of the object, which is decoded after its environment
        request(Path(str(server.server_address)), "POST", "/v3/jobs", body)
    assert not error.value.field.startswith("environments")
