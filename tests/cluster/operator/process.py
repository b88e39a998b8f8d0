"""The operator as a process of its own, as a user would start it outside of a cluster."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from muster.local.nodes import free_port

QUICK = ("--lease-duration-seconds", "10", "--renew-deadline-seconds", "7", "--retry-period-seconds", "1")
"""Another operator takes over soon, and none loses its Lease on a loaded machine."""


class Operator:
    """A running operator. `kill` ends it at once, `stop` lets it end by itself, `freeze` and `thaw` are signals too."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str) -> None:
        """Start it. Its log goes to `log`, after what is there already."""
        self.log = log
        self._public, self._private = free_ports(2)
        command = [
            sys.executable, "-m", "muster_operator", "--kubeconfig", str(kubeconfig), "--listen",
            f"127.0.0.1:{self._public}", "--listen-local", f"127.0.0.1:{self._private}", "--snapshot-dir",
            str(log.parent), "--log-level", "debug", *flags,
        ]  # fmt: skip
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no locks
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self, seconds: float = 30.0) -> int:
        """SIGTERM; its exit code. Killed if it does not end."""
        if self.running:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the operator did not end within {seconds} s of SIGTERM\n{self.tail()}") from None

    def wait_for_end(self, seconds: float = 60.0) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._process.wait(seconds)

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send any signal."""
        os.kill(self.pid, number)

    def get(self, path: str, *, private: bool = False) -> tuple[int, str]:
        """What it answers: code and text. (0, "") when it does not answer."""
        port = self._private if private else self._public
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str, **labels: str) -> float:
        """The value of a metric with these labels; 0 if there is none."""
        for family in text_string_to_metric_families(self.get("/metrics")[1]):
            for sample in family.samples:
                if (sample.name, sample.labels) == (name, labels):
                    return sample.value
        return 0.0

    def api_calls(self, verb: str, resource: str, code: str) -> float:
        """Requests to the API server with this answer."""
        return self.metric("muster_api_calls_total", verb=verb, resource=resource, code=code)

    def has_seen(self, resource: str) -> int:
        """The resourceVersion up to which it has seen a resource, by its plural name."""
        return int(self.metric("muster_watch_version", resource=resource))

    @property
    def leads(self) -> bool:
        """Whether it acts."""
        return self.running and self.metric("muster_leading") == 1.0

    def records(self) -> list[dict[str, Any]]:
        """What it has logged."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def tail(self) -> str:
        """The end of its log, for a failure."""
        return "\n".join(self.log.read_text().splitlines()[-30:])

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 300.0) -> None:
        """Wait until it holds; AssertionError with the end of the log if it does not, or the process ends."""
        until, pause = time.monotonic() + seconds, 0.02
        while not holds():
            assert self.running, f"the operator ended while waiting: {what}\n{self.tail()}"
            assert time.monotonic() < until, f"not within {seconds} s: {what}\n{self.tail()}"
            time.sleep(pause)
            pause = min(pause * 1.2, 0.25)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _die_with_parent() -> None:
    """Should the tests be killed, the kernel kills the operator (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_ports(count: int) -> list[int]:
    """Different free ports, which the kernel gives to no other process before the operator listens."""
    ports: list[int] = []
    while len(ports) < count:
        ports.append(free_port(ports, random.Random()))
    return ports
