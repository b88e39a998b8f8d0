"""Writes files in a thread of its own, so that a slow file system does not delay a step. Imports no torch."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Final

FLUSH_TIMEOUT_S: Final = 10.0


class WriteThread:
    """Calls what is added, in order. The thread starts with the first call; what is left when the program ends is then
    called. A forked process has a thread of its own, and calls only what it adds."""

    def __init__(self) -> None:
        self._writes: deque[Callable[[], object]] = deque()
        self._added = threading.Event()
        self._process = 0

    def add(self, write: Callable[[], object]) -> None:
        """Call it soon. An exception is printed."""
        if self._process != os.getpid():
            self._process, self._writes, self._added = os.getpid(), deque(), threading.Event()
            atexit.register(self.flush)
            threading.Thread(target=self._run, name="muster-writes", daemon=True).start()
        self._writes.append(write)
        self._added.set()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait until everything has been called, no longer than the time-out: the file system may hang."""
        if self._process == os.getpid():
            is_done = threading.Event()
            self.add(is_done.set)
            is_done.wait(timeout_s)

    def _run(self) -> None:
        writes, added = self._writes, self._added
        while added.wait():
            added.clear()
            while writes:
                try:
                    writes.popleft()()
                except Exception:  # training goes on
                    traceback.print_exc()
