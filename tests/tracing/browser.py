"""A headless Chromium, driven by the DevTools protocol through pipes (`--remote-debugging-pipe`)."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TIMEOUT_S = 300.0
_NAVIGATED = (
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find default execution context",  # of a window that is only opening
)


class NavigatedError(AssertionError):
    """The page was replaced by another one while a command ran in it."""


class Browser:
    """Sends commands, and keeps the events that arrive meanwhile."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        """The result of a command. Raises AssertionError if it fails or is not answered."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + TIMEOUT_S
        while (answer := self._next(until)).get("id") != number:
            self.events.append(answer)
        if answer.get("error", {}).get("message") in _NAVIGATED:
            raise NavigatedError(answer["error"])
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(until - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "the browser has ended"
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def pages(self) -> list[dict[str, Any]]:
        """The open pages: `targetId`, `url`, `title`."""
        targets = self.call("Target.getTargets")["targetInfos"]
        return [target for target in targets if target["type"] == "page"]

    def open(self, url: str, *, width: int = 1200, dark: bool = False) -> Tab:
        """A new tab, once its page is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        tab = self.attach(target)
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Page.navigate", url=url)
        tab.wait_for("location.href != 'about:blank'")
        return tab

    def attach(self, target: str) -> Tab:
        """The tab of an open page, with its console and network recorded in `events`."""
        tab = Tab(self, target, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            tab.call(f"{domain}.enable")
        return tab


class Tab:
    """One page."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self._browser, self._target, self.session = browser, target, session

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self._browser.call(method, self.session, **params)

    def value(self, expression: str) -> Any:
        """The value of an expression in the page, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until the whole page has been received and an expression is true."""
        until = time.monotonic() + TIMEOUT_S
        while not self._is_true(f"document.readyState === 'complete' && ({condition})"):
            assert time.monotonic() < until, f"not so: {condition}; {self.value('document.body.innerText')[:2000]}"
            time.sleep(0.05)

    def _is_true(self, condition: str) -> bool:
        try:
            return bool(self.value(condition))
        except NavigatedError:
            return False  # of the page before; asked again of the next one

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse, as a user does."""
        quoted = json.dumps(selector)
        self.value(f"document.querySelector({quoted}).scrollIntoView({{block: 'center'}})")
        box = self.value(f"JSON.parse(JSON.stringify(document.querySelector({quoted}).getBoundingClientRect()))")
        at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        png = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(png))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, which cannot reach other hosts by name."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands, to_browser = os.pipe()
        from_browser, answers = os.pipe()
        # The browser reads from file descriptor 3 and writes to 4.
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (commands, answers)]
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        script = f'exec "$@" 3<&{passed[0]} 4>&{passed[1]}'
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", PROGRAM, *arguments],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, answers, *passed):
            os.close(fd)
        browser = Browser(to_browser, from_browser)
        try:
            yield browser
            browser.call("Browser.close")
        finally:
            os.close(to_browser)
            os.close(from_browser)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def served_by_muster(*arguments: str, **environment: str) -> Iterator[str]:
    """A command of `muster` that serves pages, ended by Ctrl-C; yields the address that it prints last."""
    command = [str(Path(sys.executable).with_name("muster")), *arguments]
    variables = {**os.environ, "NO_COLOR": "1", **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    assert process.stdout is not None
    try:
        yield next(line.strip() for line in process.stdout if line.startswith("http://"))
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
