"""Sends a page's content to the browsers that show it, when it has changed.

One thread renders each page that is shown once a second, for all its browsers together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.dashboard.render import without_ages

PERIOD_S = 1.0
MAX_VIEWERS = 32
"""Pages that are kept current at a time; each has a connection and a thread."""
_MAX_SHARE = 0.5  # of the time, which rendering may take: after a slow round the next one waits


class TooManyViewers(Exception):
    """As many pages as allowed are kept current already."""


class AccessEnded(Exception):
    """The user may not see pages any more."""


@dataclass(eq=False)
class Viewer:
    """A browser that shows the page `target`. `content` is what it gets next; None: nothing new."""

    target: str
    changed: threading.Condition = field(default_factory=threading.Condition)
    content: str | None = None
    closed: bool = False

    def wait(self, timeout_s: float) -> str | None:
        """The new content, or None if there is none within this time or the server ends."""
        with self.changed:
            self.changed.wait_for(lambda: self.content is not None or self.closed, timeout_s)
            content, self.content = self.content, None
            return content

    def put(self, content: str) -> None:
        """Replace what it gets next: a slow browser skips what is outdated."""
        with self.changed:
            self.content = content
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class LiveUpdates:
    """`render` returns the content of a page's path and query; if it raises `AccessEnded`, the connections of all
    viewers end. Begins with `start` and ends with `end`, or is used in the context of `running`."""

    def __init__(
        self, render: Callable[[str], str], period_s: float = PERIOD_S, max_viewers: int = MAX_VIEWERS
    ) -> None:
        self._render = render
        self._period_s = period_s
        self._max_viewers = max_viewers
        self._thread = threading.Thread(target=self._run, name="live-updates", daemon=True)
        self._lock = threading.Condition()
        self._viewers: list[Viewer] = []
        self._sent: dict[str, str] = {}  # by target: what its viewers have, without ages
        self._ended = False

    @contextmanager
    def viewer(self, target: str) -> Iterator[Viewer]:
        """A viewer, which first gets the present content. Raises `TooManyViewers`."""
        viewer = Viewer(target)
        with self._lock:
            if len(self._viewers) >= self._max_viewers:
                raise TooManyViewers
            self._viewers.append(viewer)
            self._sent.pop(target, None)  # the next round sends it to all
            viewer.closed = self._ended
            self._lock.notify_all()
        try:
            yield viewer
        finally:
            with self._lock:
                self._viewers.remove(viewer)

    @property
    def viewers(self) -> int:
        with self._lock:
            return len(self._viewers)

    @property
    def has_ended(self) -> bool:
        with self._lock:
            return self._ended

    def start(self) -> None:
        """Render in a thread from now on."""
        self._thread.start()

    def end(self) -> None:
        """Close all viewers; the thread ends after the round that it may be in."""
        with self._lock:
            self._ended = True
            self._close_viewers()
            self._lock.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Between `start` and `end`. Waits for the thread."""
        self.start()
        try:
            yield
        finally:
            self.end()
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._viewers or self._ended)
                if self._ended:
                    return
            began = time.monotonic()
            try:
                self._send_changes()
            except AccessEnded:
                with self._lock:
                    self._close_viewers()
            took = time.monotonic() - began
            pause_s = max(self._period_s - took, took / _MAX_SHARE - took)
            with self._lock:
                self._lock.wait_for(lambda: self._ended, pause_s)

    def _close_viewers(self) -> None:
        for viewer in self._viewers:
            viewer.close()

    def _send_changes(self) -> None:
        """One round over all pages that are shown."""
        with self._lock:
            targets = {viewer.target for viewer in self._viewers}
            self._sent = {target: sent for target, sent in self._sent.items() if target in targets}
        for target in sorted(targets):
            content = self._render(target)
            compared = without_ages(content)
            with self._lock:
                if self._sent.get(target) == compared:
                    continue
                self._sent[target] = compared
                viewers = [viewer for viewer in self._viewers if viewer.target == target]
            for viewer in viewers:
                viewer.put(content)
