"""The report in Chromium: it fits narrow screens, breaks no rule of its own, and hands traces to Perfetto."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.browser import PROGRAM, Browser, Tab, chromium, served_by_muster
from tests.tracing.kineto import DATA, GpuRank
from tests.tracing.run_folders import gpu_run_folder

from muster.tracing.page.account_section import STYLES
from muster.tracing.report import build

pytestmark = [pytest.mark.slow, pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")]

# What ui.perfetto.dev does: it answers its opener only, once its document is complete, and takes one trace.
PERFETTO = b"""<!doctype html><title>Perfetto</title><script>
window.pings = 0;
window.addEventListener("message", async (event) => {
  if (document.readyState !== "complete" || event.source !== window.opener) return;
  if (event.data === "PING") {
    window.pings += 1;
    if (!location.search.includes("silent")) event.source.postMessage("PONG", event.origin);
    return;
  }
  const { buffer, title, fileName } = event.data.perfetto;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", buffer));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  window.received = { bytes: buffer.byteLength, sha256: hex, title, fileName, origin: event.origin };
});
</script>"""


@contextmanager
def stub_of_perfetto() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Its address, and the headers of the requests that it got."""
    requests: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PERFETTO)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}/", requests
        finally:
            server.shutdown()
            thread.join()


def muster_report(run: Path, perfetto_url: str) -> AbstractContextManager[str]:
    """`muster report RUN --serve`, ended by Ctrl-C; yields the address that it prints last."""
    return served_by_muster("report", str(run), "--serve", "--perfetto-url", perfetto_url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return gpu_run_folder(tmp_path / "run", [GpuRank(), GpuRank(slowdown=1.3)], steps=40)


def errors(browser: Browser, tab: Tab) -> list[str]:
    """What the page's console and its security policy complained about."""
    tab.value("1")  # all earlier events have arrived
    own = [event for event in browser.events if event.get("sessionId") == tab.session]
    entries = [event["params"]["entry"]["text"] for event in own if event["method"] == "Log.entryAdded"]
    thrown = [str(event["params"]) for event in own if event["method"] == "Runtime.exceptionThrown"]
    # A message for Perfetto that comes before its page has replaced about:blank is refused, and sent again.
    return [text for text in entries + thrown if "postMessage" not in text]


def opened_by(browser: Browser, before: list[dict[str, Any]]) -> Tab:
    """The page that was opened since."""
    known = {page["targetId"] for page in before}
    until = time.monotonic() + 300
    while not (new := [page["targetId"] for page in browser.pages() if page["targetId"] not in known]):
        assert time.monotonic() < until, "no page was opened"
        time.sleep(0.05)
    return browser.attach(new[0])


def status_of(tab: Tab) -> Any:
    return tab.value("document.querySelector('[role=status]').textContent")


LATE = GpuRank(blocked=("a_long_name_of_an_annotation_that_saves_a_checkpoint", 300.0, 1))
MANY_CAUSES = [GpuRank(), LATE, GpuRank()]
# What is not hidden beyond the edge of the window, or of a box around it that cuts it off.
OVERFLOWING = """
Array.from(document.querySelectorAll('.headline, .facts *, .causes *, .chart *, .legend *, .work *, h1, h2, .hint'))
  .filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
  }).map((e) => e.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_page_fits_a_narrow_screen_in_both_colour_schemes(browser: Browser, tmp_path: Path, ranks: int) -> None:
    report = build(gpu_run_folder(tmp_path / "run", [GpuRank() for _ in range(ranks)], steps=40))
    papers = set()
    for dark in (False, True):
        tab = browser.open(f"file://{report.page}", width=400, dark=dark)
        assert tab.value("document.documentElement.scrollWidth") <= 400
        assert errors(browser, tab) == []
        papers.add(tab.value("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_heat_maps_of_many_ranks_and_steps_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    report = build(gpu_run_folder(tmp_path / "run", [GpuRank() for _ in range(12)], steps=120))
    tab = browser.open(f"file://{report.page}", width=360)
    widths = tab.value(
        "Array.from(document.querySelectorAll('.heat .cells')).map((e) => e.getBoundingClientRect().toJSON())"
    )
    assert len(widths) > 0
    assert all(box["width"] > 200 and box["right"] <= 360 for box in widths)
    wide = "Array.from(document.querySelectorAll('.scroll')).filter((e) => e.querySelector('.heat'))"
    assert tab.value(f"{wide}.filter((e) => e.scrollWidth > e.clientWidth + 1).length") == 0


@pytest.mark.smoke
@pytest.mark.parametrize("width", [360, 1200])
def test_what_the_page_opens_with_is_within_the_window_and_needs_no_scrolling(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    report = build(gpu_run_folder(tmp_path / "run", MANY_CAUSES, steps=40))
    shapes = build(DATA / "h200/pp.shapes/rank-0.json.gz", tmp_path / "shapes")
    for page in (report.page, shapes.page):
        tab = browser.open(f"file://{page}", width=width)
        assert tab.value(OVERFLOWING) == []
        assert tab.value("document.documentElement.scrollWidth") <= width
        boxes = "Array.from(document.querySelectorAll('.scroll')).filter((e) => e.scrollWidth > e.clientWidth + 1)"
        assert tab.value(f"{boxes}.map((e) => e.outerHTML.slice(0, 200))") == []


def test_a_cause_and_its_span_in_the_timeline_link_to_each_other_also_by_keyboard(
    browser: Browser, tmp_path: Path
) -> None:
    tab = browser.open(f"file://{build(gpu_run_folder(tmp_path / 'run', MANY_CAUSES, steps=40)).page}")
    assert tab.value("document.querySelector('#cause-1 .links a').getAttribute('href')") == "#span-1"
    focused = []
    for _ in range(40):
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        focused.append(tab.value("document.activeElement.getAttribute('href')"))
    assert {"#span-1", "#cause-1"} <= set(focused)
    tab.click("#cause-1 .links a")
    assert tab.value("location.hash") == "#span-1"
    tab.wait_for("document.querySelector('#span-1').getBoundingClientRect().top < innerHeight")
    tab.click("#span-1")
    assert tab.value("location.hash") == "#cause-1"


@pytest.mark.parametrize("dark", [False, True])
def test_the_uses_of_time_differ_in_colour_or_pattern_and_have_a_legend(
    browser: Browser, tmp_path: Path, dark: bool
) -> None:
    report = build(gpu_run_folder(tmp_path / "run", MANY_CAUSES, steps=40))
    tab = browser.open(f"file://{report.page}", dark=dark)
    appearance = "((e) => { const s = getComputedStyle(e); return s.backgroundColor + s.backgroundImage; })"
    used = set(tab.value(f"Array.from(document.querySelectorAll('.chart i')).map({appearance})"))
    shown = set(tab.value(f"Array.from(document.querySelectorAll('.legend .key')).map({appearance})"))
    assert used <= shown
    styles = sorted(set(STYLES.values()))
    elements = "".join(f"<i class={style}></i>" for style in styles)
    tab.value(f"document.body.innerHTML = '{elements}'")
    appearances = tab.value(f"Array.from(document.querySelectorAll('i')).map({appearance})")
    assert len(set(appearances)) == len(styles)


def test_the_button_hands_the_trace_of_a_rank_to_perfetto(browser: Browser, run: Path) -> None:
    with stub_of_perfetto() as (url, requests), muster_report(run, url) as address:
        tab, before = browser.open(address), browser.pages()
        tab.click("button[data-trace='traces/1']")
        perfetto = opened_by(browser, before)
        perfetto.wait_for("window.received !== undefined")
        tab.wait_for("document.querySelectorAll('[role=status]')[1].textContent == 'opened'")
        name = "traces/spool/rank-1.attempt-0.steps-10-15.json"
        content = (run / name).read_bytes()
        assert perfetto.value("window.received") == {
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "title": "run, rank 1",
            "fileName": name,
            "origin": re.sub("/[^/]*/$", "", address),
        }
        assert errors(browser, tab) == []
        token = address.split("/")[-2]
        assert requests
        assert token not in json.dumps(requests)


def test_a_second_trace_opens_in_a_window_of_its_own(browser: Browser, run: Path) -> None:
    with stub_of_perfetto() as (url, _), muster_report(run, url) as address:
        tab = browser.open(address)
        titles = []
        for rank in (0, 1):
            before = browser.pages()
            tab.click(f"button[data-trace='traces/{rank}']")
            perfetto = opened_by(browser, before)
            perfetto.wait_for("window.received !== undefined")
            titles.append(perfetto.value("window.received.title"))
        assert titles == ["run, rank 0", "run, rank 1"]


def test_the_page_says_that_the_browser_blocks_the_window(browser: Browser, run: Path) -> None:
    """Without a user's click, a browser opens no window."""
    with muster_report(run, "http://localhost:9/") as address:
        tab = browser.open(address)
        tab.value("document.querySelector('button').click()")
        assert status_of(tab) == "The browser blocked the new window: allow pop-ups for this page."


def test_the_page_says_that_the_window_was_closed_before_it_answered(browser: Browser, run: Path) -> None:
    with stub_of_perfetto() as (url, _), muster_report(run, f"{url}?silent") as address:
        tab, before = browser.open(address), browser.pages()
        tab.click("button")
        perfetto = opened_by(browser, before)
        perfetto.wait_for("window.pings > 1")
        perfetto.close()
        tab.wait_for("document.querySelector('[role=status]').textContent == 'The window of Perfetto was closed.'")


def test_the_page_says_why_a_trace_cannot_be_read(browser: Browser, run: Path) -> None:
    with stub_of_perfetto() as (url, _), muster_report(run, url) as address:
        (run / "traces/spool/rank-0.attempt-0.steps-10-15.json").unlink()
        tab = browser.open(address)
        tab.click("button")
        tab.wait_for("document.querySelector('[role=status]').textContent.includes('No such file or directory')")
