"""A program that ends with us, whatever ends us; see supervise.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

SUPERVISE = Path(__file__).with_name("supervise.py")


class Died(Exception):
    """A program ended that should run; the message names its log and shows the log's end."""


class Supervised:
    """A running program. Its output is appended to `folder/NAME.log`."""

    def __init__(self, name: str, command: list[str], folder: Path, leftover: Path | None = None) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._pid_file.unlink(missing_ok=True)
        supervise = [sys.executable, "-I", "-S", str(SUPERVISE), str(self._pid_file), str(leftover or "")]
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*supervise, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            )

    @property
    def pid(self) -> int:
        """The program's own process id, not its supervisor's."""
        until = time.monotonic() + 300
        while not self._pid_file.exists():
            self.check()
            if time.monotonic() > until:
                raise Died(f"{self.name} did not start; see {self.log}")
            time.sleep(0.01)
        return int(self._pid_file.read_text())

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._supervisor.poll() is not None

    def check(self) -> None:
        """Raise Died if it has ended."""
        code = self._supervisor.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
            raise Died(f"{self.name} ended with {code}; see {self.log}:\n" + "\n".join(lines))

    def kill(self) -> None:
        """End it at once with SIGKILL, and wait until it is gone. Does nothing when it has ended."""
        if self._supervisor.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """Let go of it: the supervisor kills it and cleans up. Returns when both are gone."""
        stdin: BinaryIO | None = self._supervisor.stdin  # type: ignore[assignment]
        if stdin is not None and not stdin.closed:
            stdin.close()
        self._supervisor.wait()
