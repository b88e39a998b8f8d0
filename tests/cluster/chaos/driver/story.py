"""A run from its beginning to its verdict: set the stage, let it all happen, mend everything, wait, clean up, judge."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.chaos.driver import cluster_objects, troubles
from tests.cluster.chaos.driver.operators import NAMESPACE, Operators
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.stage import GROUP, Stage
from tests.cluster.chaos.driver.wishes import NAMESPACES, Wish, wishes
from tests.cluster.controlplane.plane import ControlPlane

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[4]
CRDS = ROOT / "helm" / "crds.yaml"
_ENDS = {
    "succeeds": {("Succeeded", "Completed")},
    "fails": {("Failed", "TooManyRestarts"), ("Failed", "FailurePolicy")},
    "cancelled": {("Cancelled", "Cancelled")},
}
"""By a job's fate: the phases and reasons it may end with."""


@dataclass(slots=True)
class Verdict:
    """What came of a run. `surprises`: jobs that did not end as they must; `violations`: lines of the observer."""

    seed: int
    phases: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    surprises: list[str] = field(default_factory=list)
    violations: list[Json] = field(default_factory=list)
    seen: Json = field(default_factory=dict)  # events by kind
    seconds: float = 0.0
    slow: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not self.surprises and not self.violations

    def text(self) -> str:
        """For a person."""
        lines = [
            f"seed {self.seed}: {'every promise kept' if self.good else 'PROMISES BROKEN'}, {self.seconds:.0f} s",
            f"  jobs: {_counted(self.phases)}; starts of gangs: {self.attempts}",
            f"  troubles: {_counted(self.troubles)}",
            f"  seen by the observer: {_counted(self.seen)}",
        ]
        lines += [f"  slow: {slow}" for slow in self.slow]
        lines += [f"  SURPRISE {surprise}" for surprise in self.surprises[:20]]
        lines += [f"  VIOLATION {v['violation']}: {v['of']}: {v['message']}" for v in self.violations[:20]]
        return "\n".join(lines)


def _counted(counts: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def play(size: Size, folder: Path, say: Callable[[str], None]) -> Verdict:
    """Play one run; what it leaves in `folder` are logs and the observer's report."""
    began = time.monotonic()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane.start(folder / "plane", readable=True, crds=CRDS))
        operators = Operators(plane, folder / "operators")
        stack.callback(operators.stop)
        report = folder / "violations.jsonl"
        observer = _Observer(plane.etcd, report)
        stack.callback(observer.kill)
        run = _Run(Stage(plane, operators, size), wishes(size), observer, say)
        run.set_up()
        run.let_it_happen()
        run.mend()
        run.wait_for_the_end()
        verdict = run.verdict()
        run.clean_up(verdict)
        observer.finish()
        verdict.violations, verdict.seen = observer.told()
        verdict.seconds = time.monotonic() - began
        return verdict


class _Observer:
    """The observer's process."""

    def __init__(self, etcd: str, report: Path) -> None:
        self.report = report
        command = [sys.executable, "-m", "tests.cluster.chaos.observer", f"--etcd={etcd}", f"--report={report}"]
        command.append(f"--record={report.with_name('history.gz')}")
        self._process = subprocess.Popen(command, cwd=ROOT)

    def check(self) -> None:
        """It must not end before it is told to."""
        assert self._process.poll() is None, "the observer has ended"

    def finish(self) -> None:
        """Let it judge the end."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def kill(self) -> None:
        """Leave nothing behind."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def told(self) -> tuple[list[Json], Json]:
        """Its violations, and what it has seen. AssertionError without a summary: it did not get to the end."""
        lines = [json.loads(line) for line in self.report.read_text().splitlines()]
        assert lines, f"the observer wrote nothing; see {self.report}"
        assert "summary" in lines[-1], f"the observer did not finish; see {self.report}"
        return lines[:-1], lines[-1]["summary"]["seen"]

    def violations(self) -> int:
        """How many so far."""
        return len(self.report.read_text().splitlines()) if self.report.exists() else 0


class _Run:
    def __init__(self, stage: Stage, wanted: list[Wish], observer: _Observer, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._wishes = wanted
        self._observer = observer
        self._say = say
        self._said_at = 0.0
        self._submitted: list[Wish] = []

    def set_up(self) -> None:
        """Namespaces, nodes, flavors, queues, and the first operator."""
        stage, plane = self._stage, self._stage.plane
        for name in (NAMESPACE, *NAMESPACES):
            stage.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name in NAMESPACES:
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            plane.wait_for(f"{name} has its service account", lambda account=account: not stage.api.gone(account))  # type: ignore[misc]
        stage.add_all_nodes()
        for flavor in cluster_objects.flavors():
            stage.api.create(f"{GROUP}/flavors", flavor)
        for queue in cluster_objects.queues(stage.size):
            stage.api.create(f"{GROUP}/queues", queue)
        stage.operators.start(0)

    def let_it_happen(self) -> None:
        """Jobs come and things break, as the diary has it."""
        stage = self._stage
        for wish in self._wishes:
            stage.at(wish.at, lambda wish=wish: self._submit(wish))  # type: ignore[misc]
            for act in wish.acts:
                stage.at(act.at, lambda wish=wish, act=act: self._act(wish, act.spec))  # type: ignore[misc]
        troubles.plan(stage)
        stage.begin()
        while stage.pending:
            stage.do_what_is_due()
            self._progress()
            time.sleep(0.02)

    def mend(self) -> None:
        """Every node is back (the diary saw to that); quotas and operators as they should be."""
        stage = self._stage
        for queue in cluster_objects.queues(stage.size):
            path = f"{GROUP}/queues/{queue['metadata']['name']}"
            stage.persist(lambda path=path, queue=queue: stage.api.patch(path, {"spec": queue["spec"]}))  # type: ignore[misc]
        for slot in stage.operators.slots:
            stage.operators.proxy(slot).fast()
            stage.operators.thaw(slot)
        stage.operators.start(0)

    def wait_for_the_end(self) -> None:
        """All jobs end, and then nothing happens for a while."""
        stage = self._stage
        until = stage.now + stage.size.patience_s
        while stage.now < until and not all(_ended(job) for job in self._jobs()):
            self._progress()
            time.sleep(min(2.0, 0.2 + stage.size.jobs / 500))
        quiet_until = stage.now + stage.size.quiet_s
        while stage.now < quiet_until:
            self._progress()
            time.sleep(0.5)

    def verdict(self) -> Verdict:
        """How the jobs ended, and whether they had to."""
        verdict = Verdict(self._stage.size.seed, troubles=self._stage.counts, slow=self._stage.slow)
        jobs = {(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in self._jobs()}
        for wish in self._wishes:
            job = jobs.get((wish.namespace, wish.name))
            phase = "deleted" if job is None else _phase(job)
            verdict.phases[phase] += 1
            verdict.attempts += 0 if job is None else 1 + int(job["status"].get("attempt", 0))
            surprise = _surprise(wish, job)
            if surprise:
                verdict.surprises.append(f"{wish.namespace}/{wish.name}: {surprise}")
        return verdict

    def clean_up(self, verdict: Verdict) -> None:
        """Delete everything that was created; what stays then is a leak."""
        stage = self._stage
        for namespace in NAMESPACES:
            path = f"{GROUP}/namespaces/{namespace}/trainingjobs"
            stage.persist(lambda path=path: stage.api.delete(path))  # type: ignore[misc]
        stage.persist(lambda: stage.api.delete("/api/v1/namespaces/default/pods", gracePeriodSeconds=0))
        for queue in reversed(cluster_objects.queues(stage.size)):
            path = f"{GROUP}/queues/{queue['metadata']['name']}"
            stage.persist(lambda path=path: stage.api.delete(path))  # type: ignore[misc]
        until = stage.now + 120
        while (left := self._left()) and stage.now < until:
            self._progress()
            time.sleep(0.5)
        if not left:
            return
        names = sorted(f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}" for one in left)
        verdict.surprises.append(f"{len(left)} objects are not gone after 120 s: {', '.join(names[:10])}")

    def _left(self) -> list[Json]:
        api = self._stage.api
        paths = (f"{GROUP}/trainingjobs", "/api/v1/pods", f"{GROUP}/queues", "/api/v1/services")
        every = [one for path in paths for one in self._stage.persist(lambda path=path: api.items(path))]  # type: ignore[misc]
        return [one for one in every if one["metadata"]["name"] != "kubernetes"]

    # ---- small steps

    def _submit(self, wish: Wish) -> None:
        self._stage.persist(lambda: self._stage.api.create(wish.path, wish.body))
        self._submitted.append(wish)

    def _act(self, wish: Wish, spec: Json | None) -> None:
        path, api = f"{wish.path}/{wish.name}", self._stage.api
        self._stage.persist(lambda: api.delete(path) if spec is None else api.patch(path, {"spec": spec}))

    def _jobs(self) -> list[Json]:
        jobs: list[Json] = self._stage.persist(lambda: self._stage.api.items(f"{GROUP}/trainingjobs"))
        return jobs

    def _progress(self) -> None:
        self._observer.check()
        self._stage.operators.check()
        self._stage.plane.revive_scheduler()
        if self._stage.now < self._said_at + 10.0:
            return
        self._said_at = self._stage.now
        phases = Counter(_phase(job) for job in self._jobs())
        self._say(
            f"{self._stage.now:5.0f} s  {len(self._submitted)} of {len(self._wishes)} submitted: {_counted(phases)}; "
            f"{sum(self._stage.counts.values())} troubles, {self._observer.violations()} violations"
        )


def _phase(job: Json) -> str:
    return str((job.get("status") or {}).get("phase", "new"))


def _ended(job: Json) -> bool:
    return _phase(job) in ("Succeeded", "Failed", "Cancelled")


def _surprise(wish: Wish, job: Json | None) -> str:
    """Why this is not how the job had to end; "" if it is. Whoever was cancelled too late may have failed before."""
    if wish.fate == "deleted":
        return "" if job is None else "is still there"
    if job is None:
        return "is gone"
    phase, reason = _phase(job), (job.get("status") or {}).get("reason", "")
    wanted = _ENDS[wish.fate]
    return "" if (phase, reason) in wanted else f"should have ended as one of {sorted(wanted)}, is {phase} ({reason})"
