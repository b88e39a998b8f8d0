"""`muster report --serve`: the page and its traces, on loopback, for any client that has the address."""

from __future__ import annotations

import gzip
import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.tracing.kineto import trace_text, training_steps, write_trace
from tests.tracing.run_folders import HOSTILE, Page, page_of, run_folder

from muster.tracing.page.report_server import ReportServer
from muster.tracing.report import Report, build

PERFETTO = "https://ui.perfetto.dev"


@contextmanager
def serving(report: Report) -> Iterator[ReportServer]:
    with ReportServer(report, PERFETTO) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "run")


@pytest.fixture
def server(run: Path) -> Iterator[ReportServer]:
    with serving(build(run)) as server:
        yield server


def get(
    server: ReportServer, path: str, *, host: str | None = None, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """The status, headers and body of a request to a path as written, which no client cleans up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    if host != "":
        connection.putheader("Host", host or server.hosts[0])
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return found


def test_the_page_and_the_bytes_of_its_traces_are_served(run: Path, server: ReportServer) -> None:
    status, headers, page = get(server, f"/{server.token}/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page == server.page
    for rank in (0, 1):
        file = run / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json"
        assert get(server, f"/{server.token}/traces/{rank}")[::2] == (200, file.read_bytes())


def test_a_compressed_trace_is_served_as_it_is_without_an_encoding_that_the_browser_would_undo(tmp_path: Path) -> None:
    packed = gzip.compress(trace_text(training_steps()))
    (tmp_path / "a.json.gz").write_bytes(packed)
    with serving(build(tmp_path / "a.json.gz")) as server:
        status, headers, body = get(server, f"/{server.token}/traces/0")
    assert (status, body) == (200, packed)
    assert headers["content-type"] == "application/octet-stream"
    assert "content-encoding" not in headers


def test_it_listens_on_the_loopback_address_only(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert urlsplit(server.url).hostname == "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:{port}.evil.example", "localhost:1"]
)
@pytest.mark.parametrize("path", ["/", "/traces/0"])
def test_a_request_for_another_host_is_refused_although_its_token_is_right(
    server: ReportServer, host: str, path: str
) -> None:
    """DNS rebinding: a page of evil.example makes its own name resolve to 127.0.0.1."""
    status, _, body = get(server, f"/{server.token}{path}", host=host.format(port=server.server_address[1]))
    assert (status, body) == (421, b"The Host header must name this server.\n")


def test_localhost_is_a_name_of_this_server(server: ReportServer) -> None:
    assert get(server, f"/{server.token}/", host=f"localhost:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/x/", "/{short}/", "/{token}", "/x/traces/0", "//{token}/x", "/%2e%2e/{token}/", "{token}", "*"]
)
def test_without_the_whole_token_nothing_is_found(server: ReportServer, path: str) -> None:
    status, _, body = get(server, path.format(token=f"{server.token}x", short=server.token[:-1]))
    assert status == 404
    assert server.token.encode() not in body


@pytest.mark.parametrize(
    "path",
    ["traces/2", "traces/-1", "traces/", "traces/0/", "traces/00", "traces/+1",
     "traces/../../../etc/passwd", "traces/%2e%2e/report.json", "../secret", "report.json", "traces/0?x", "?x",
     "metrics/rank-0.jsonl", "/etc/passwd"],
)  # fmt: skip
def test_only_the_page_and_traces_by_number_exist(server: ReportServer, run: Path, path: str) -> None:
    (run.parent / "secret").write_text("secret")
    assert get(server, f"/{server.token}/{path}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_possible(server: ReportServer, method: str) -> None:
    assert get(server, f"/{server.token}/", method=method)[0] == 501


@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_trace_that_a_rank_replaced_by_a_link_is_not_followed(run: Path, server: ReportServer, place: str) -> None:
    secret = run.parent / "secret"
    name = "rank-0.attempt-0.steps-20-23.json"
    secret.mkdir()
    (secret / name).write_text("secret")
    spool = run / "traces/spool"
    if place == "file":
        (spool / name).unlink()
        (spool / name).symlink_to(secret / name)
    else:
        spool.rename(run / "traces/moved")
        spool.symlink_to(secret)
    status, _, body = get(server, f"/{server.token}/traces/0")
    assert status == 409
    assert b"run muster report again" in body
    assert b"secret" not in body


def test_other_origins_can_neither_read_nor_frame_it_and_the_token_is_not_sent_to_them(server: ReportServer) -> None:
    for path in ("/", "/traces/0", "/x"):
        _, headers, _ = get(server, f"/{server.token}{path}")
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_each_server_has_a_token_of_its_own(run: Path) -> None:
    report = build(run)
    with ReportServer(report, PERFETTO) as one, ReportServer(report, PERFETTO) as other:
        assert one.token != other.token
        assert len(one.token) >= 43  # 256 bits


def test_the_served_page_has_a_button_per_trace_and_one_script_that_its_policy_names(server: ReportServer) -> None:
    text = server.page.decode()
    page = Page(text)
    assert (page.tags.count("script"), page.tags.count("button"), page.loads, page.open) == (1, 2, [], [])
    assert re.findall(r'data-trace="([^"]*)"', text) == ["traces/0", "traces/1"]
    assert 'data-file="traces/spool/rank-1.attempt-0.steps-20-23.json"' in text
    assert re.search(r"default-src &#39;none&#39;.*script-src &#39;sha256-[^;]+&#39;; connect-src &#39;self&#39;", text)


def test_the_page_as_a_file_has_no_button_and_names_the_command(run: Path) -> None:
    text = page_of(build(run))
    assert {"script", "button"}.isdisjoint(Page(text).tags)
    assert "script-src" not in text
    assert "<code>muster report --serve</code>" in text


def test_names_in_a_served_page_are_escaped(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    write_trace(tmp_path / name / f"{name}.json", training_steps(), rank=None)
    with ReportServer(build(tmp_path / name), f"https://perfetto.example/'{name}") as server:
        page = Page(server.page.decode())
    assert (page.tags.count("script"), page.tags.count("img"), page.loads) == (1, 0, [])
