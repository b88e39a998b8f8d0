"""What a cluster has to offer so that the scenarios of this folder can be played on it.

A harness runs an engine on a cluster of two nodes with two GPUs each (virtual or not), one flavor, and the queues of
`QUEUES`. Time may be virtual or real: scenarios only ever wait for something to become true. To plug a cluster in,
write a class with these methods and a test like `test_simulated.py`:

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=name)
    def test_local(scenario, tmp_path):
        with LocalHarness(tmp_path) as harness:
            play(scenario, harness)

Backoff should be short (`Timeouts(backoff_s=0.2)`), and `job()` may be changed by the harness before it submits it: a
real cluster puts `script.command()` into the main container.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from muster.api import spec

NODES, GPUS = 2, 2
GPU = "nvidia.com/gpu"
FLAVOR = "any"

PROGRAM = """
import os, signal, sys, time
attempt = int(os.environ["MUSTER_ATTEMPT"])
pod = os.environ["MUSTER_ROLE"] + "-" + os.environ["MUSTER_REPLICA"]
def note(what):
    line = f"{what} {pod} {attempt} {time.time():.6f}\\n"
    log = os.open(os.environ["CONFORMANCE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, line.encode())
    os.close(log)
def stop(*_):
    note("stop")
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
def started():
    with open(os.environ["CONFORMANCE_LOG"]) as log:
        words = [line.split() for line in log]
    return sum(word[0] == "start" and int(word[2]) == attempt for word in words)
note("start")
time.sleep(10**6 if os.environ["MUSTER_ROLE"] in ENDLESS else FIRST if attempt == 0 else SECONDS)
code = EXITS[attempt] if attempt < len(EXITS) else 0
while code and started() < int(os.environ["MUSTER_REPLICAS"]):
    time.sleep(0.02)
note("end")
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Script:
    """What every pod of a job does: run for `seconds`, then exit with `exits[attempt]`, 0 beyond. SIGTERM ends it.

    A pod fails only when all of its attempt have started: what they did before they were stopped is the same each time.
    Work is not kept across attempts: each runs for `seconds` again. `first`: how long attempt 0 runs instead, where
    time is real, since it is to be stopped before. `stuck`: attempts whose pods never get ready. `endless`: roles whose
    pods run until they are stopped.
    """

    seconds: float = 0.3
    first: float | None = None
    exits: tuple[int, ...] = ()
    stuck: tuple[int, ...] = ()
    endless: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """The same as a real process. It appends `start|stop|end POD ATTEMPT TIME` to $CONFORMANCE_LOG."""
        first = self.seconds if self.first is None else self.first
        values = f"FIRST, SECONDS, EXITS, ENDLESS = {first!r}, {self.seconds!r}, {self.exits!r}, {self.endless!r}\n"
        return [sys.executable, "-c", values + PROGRAM]


@dataclass(frozen=True, slots=True, order=True)
class Start:
    """A pod of an attempt was started."""

    attempt: int
    pod: str  # role-index


class Harness(Protocol):
    """A running engine on a cluster."""

    cannot: frozenset[str]
    """Names of scenarios that make no sense on this cluster."""

    def submit(self, job: spec.TrainingJob, script: Script) -> str:
        """Submit a job; its uid."""

    def edit(self, uid: str, **fields: Any) -> None:
        """Change fields of a job's spec, by their Python names."""

    def delete(self, uid: str) -> None:
        """Delete a job."""

    def job(self, uid: str) -> spec.TrainingJob | None:
        """The job now; None once it is gone."""

    def live_pods(self, uid: str) -> int:
        """How many of its pods take capacity."""

    def starts(self, uid: str) -> list[Start]:
        """Every start of a pod so far, in order. A pod that was started twice is in it twice."""

    def lose_pod(self, uid: str, index: int) -> None:
        """Make a running pod vanish without a trace."""

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Let time pass until it holds; AssertionError if it does not in time."""


def queues(flavor: str = FLAVOR, namespace_selector: dict[str, Any] | None = None) -> list[spec.Queue]:
    """A root that owns everything; `red` and `blue` are guaranteed half of it each and may borrow the other half."""
    selector = namespace_selector or {}
    return [
        _queue("all", None, flavor, NODES * GPUS, selector),
        _queue("red", "all", flavor, NODES * GPUS // 2, selector),
        _queue("blue", "all", flavor, NODES * GPUS // 2, selector),
    ]


def job(name: str, pods: int = 2, gpus: int = 1, *, least: int | None = None, **fields: Any) -> spec.TrainingJob:
    """A job of one role, `worker`, in queue `red`. `fields` are those of the spec, as a user writes them."""
    role = {"name": "worker", "replicas": pods, "minReplicas": least, "template": template(gpus)}
    body: dict[str, Any] = {"queue": "red", "roles": [role], **fields}
    return spec.TrainingJob.model_validate({"metadata": {"name": name}, "spec": body})


def template(gpus: int) -> dict[str, Any]:
    """A pod with so many GPUs and a grace of two seconds."""
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)}}}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 2}}


def _queue(name: str, parent: str | None, flavor: str, gpus: int, selector: dict[str, Any]) -> spec.Queue:
    resources = [{"flavor": flavor, "guaranteed": {GPU: str(gpus)}}]
    body = {"parent": parent, "namespaceSelector": selector, "resources": resources}
    return spec.Queue.model_validate({"metadata": {"name": name}, "spec": body})
