"""Starting the daemon from a client: in the background, without the client's secrets, and only once it answers.

Two clients may start one at the same moment: the second daemon finds the lock taken, and its client uses the first.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from muster.errors import DaemonError
from muster.local.environment import daemon_environment
from muster.local.home import Home

_START_TIMEOUT_S = 60.0
_LOG_LINES = 15


def start_daemon(home: Home, nodes: str | None = None, idle_s: float | None = None) -> None:
    """Start it and wait until it answers, or until another one has the lock. Raises `DaemonError` with its reason."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "muster.local.daemon", "--detach", "--home", str(home.path)]
    command += ["--ready-fd", str(write_end)]
    command += ["--nodes", nodes] if nodes is not None else []
    command += ["--idle-seconds", str(idle_s)] if idle_s is not None else []
    log_before = _size(home.log)
    with os.fdopen(read_end, "rb", buffering=0) as answer:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_end,),
                env=daemon_environment(os.environ, str(Path(sys.executable).parent)),
            )
        except OSError as error:
            raise DaemonError(f"the daemon cannot be started: {error}", reason="CannotStart") from error
        finally:
            os.close(write_end)
        output = _wait_for_ready(answer)
        try:
            _, complaint = child.communicate(timeout=_START_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:  # what was answered counts
            complaint = error.stderr or b""
            child.stderr.close()  # type: ignore[union-attr]
    if output == "ok" or output.startswith("AlreadyRunning:"):
        return
    reason, _, message = output.partition(": ")
    if message:
        raise DaemonError(message, reason=reason)
    text = complaint.decode(errors="replace").strip() or _log_tail(home, log_before)
    raise DaemonError(f"the daemon could not start; it said:\n{text or 'nothing'}", reason="CannotStart")


def _wait_for_ready(ready_pipe: object) -> str:
    """One line from the daemon; empty when it died or said nothing in time."""
    output = b""
    until = time.monotonic() + _START_TIMEOUT_S
    poll = select.poll()
    poll.register(ready_pipe, select.POLLIN)  # type: ignore[arg-type]
    while b"\n" not in output and time.monotonic() < until:
        if poll.poll(1000):
            part = ready_pipe.read(4096)  # type: ignore[attr-defined]
            if not part:
                break
            output += part
    return output.decode(errors="replace").strip()


def _log_tail(home: Home, begin: int) -> str:
    try:
        with open(home.log, "rb") as file:
            file.seek(begin if _size(home.log) >= begin else 0)
            return "\n".join(file.read().decode(errors="replace").splitlines()[-_LOG_LINES:])
    except OSError:
        return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
