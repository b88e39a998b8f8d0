"""The dashboard in a browser: a session, keys, and a state in memory with many jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.dashboard.serving import ReadStateClient, serving
from tests.state.observed_states import NOW, named
from tests.tracing.browser import Browser, Tab
from tests.visibility.states import leader, two_queues

from muster.dashboard.server import DashboardServer
from muster.model import Wait

PATHS = [
    "/",
    "/pending",
    "/jobs",
    "/jobs/default/job-00001",
    "/timeline",
    "/nodes",
    "/nodes/n0",
    "/preemptions",
    "/usage",
]


def enter(browser: Browser, url: str, path: str = "/", **screen: Any) -> Tab:
    """The page, of a session that was begun with the printed address."""
    first = browser.open(url)
    first.wait_for("location.search === '' && document.getElementById('live') !== null")
    first.close()
    parts = urlsplit(url)
    tab = browser.open(f"{parts.scheme}://{parts.netloc}{path}", **screen)
    tab.wait_for("document.getElementById('live') !== null")
    return tab


def press(tab: Tab, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)


def choose(tab: Tab, letter: str) -> None:
    """Type the first letter of an option of the list that has the focus."""
    for kind in ("keyDown", "keyUp"):
        text = {"text": letter} if kind == "keyDown" else {}
        tab.call("Input.dispatchKeyEvent", type=kind, key=letter, windowsVirtualKeyCode=ord(letter), **text)


@contextmanager
def many_jobs(count: int, message: str = "needs 16 GPUs") -> Iterator[DashboardServer]:
    """The dashboard of a state in memory with pending jobs."""
    jobs = [named(f"job-{number:05}") for number in range(count)]
    waits = {
        job.metadata.uid: Wait(job.metadata.uid, "QuotaExceeded", message, number + 1, NOW)
        for number, job in enumerate(jobs)
    }
    with serving(ReadStateClient(state=leader(two_queues(*jobs), waits))) as server:
        yield server
