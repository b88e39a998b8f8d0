"""A run: set up, submit jobs and inject faults, repair, wait for all jobs, clean up, collect the result."""

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

from tests.cluster.chaos.driver import cluster_objects, faults, other_kinds
from tests.cluster.chaos.driver.environment import GROUP, Environment
from tests.cluster.chaos.driver.hostile import end_with_hostile_messages
from tests.cluster.chaos.driver.large_gang import end_with_large_gang
from tests.cluster.chaos.driver.operators import NAMESPACE, Operators
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.users import NAMESPACES, PlannedJob, UserAction, planned_jobs
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.kinds import controllers

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[4]
CRDS = ROOT / "helm" / "crds.yaml"
_ENDS = {
    "succeeds": {("Succeeded", "Completed")},
    "fails": {("Failed", "TooManyRestarts"), ("Failed", "FailurePolicy")},
    "cancelled": {("Cancelled", "Cancelled")},
}
"""Phases and reasons by expected outcome."""
_RUNS_WITHIN_S = 60.0
"""A job that a user deletes once it runs is deleted so long after the last fault at the latest."""


@dataclass(slots=True)
class RunResult:
    """`unexpected`: jobs without their expected outcome; `violations`: lines of the observer."""

    seed: int
    phases: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    violations: list[Json] = field(default_factory=list)
    events: Json = field(default_factory=dict)  # by kind
    seconds: float = 0.0
    slow: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every guarantee was kept."""
        return not self.unexpected and not self.violations

    def text(self) -> str:
        """Readable summary."""
        lines = [
            f"seed {self.seed}: {'every guarantee kept' if self.good else 'GUARANTEES VIOLATED'}, {self.seconds:.0f} s",
            f"  jobs: {_counted(self.phases)}; starts of gangs: {self.attempts}",
            f"  faults: {_counted(self.faults)}",
            f"  events of the observer: {_counted(self.events)}",
        ]
        lines += [f"  slow: {slow}" for slow in self.slow]
        lines += [f"  UNEXPECTED {difference}" for difference in self.unexpected[:20]]
        lines += [f"  VIOLATION {v['violation']}: {v['of']}: {v['message']}" for v in self.violations[:20]]
        return "\n".join(lines)


def _counted(counts: Any) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def run_chaos(size: Size, folder: Path, print_line: Callable[[str], None]) -> RunResult:
    """Run once; logs, history and the observer's report stay in `folder`."""
    began = time.monotonic()
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane.start(folder / "plane", readable=True, crds=CRDS))
        stack.enter_context(controllers.job_sets(plane, folder / "job-sets"))
        operators = Operators(plane, folder / "operators", other_kinds.FLAGS)
        stack.callback(operators.stop)
        report = folder / "violations.jsonl"
        observer = _Observer(plane.etcd, report)
        stack.callback(observer.kill)
        run = _Run(Environment(plane, operators, size), planned_jobs(size), observer, print_line)
        run.set_up()
        run.inject_faults()
        run.repair()
        run.wait_for_jobs()
        result = run.result()
        result.unexpected += run.end_with_large_gang()
        result.unexpected += run.end_with_hostile_messages()
        result.unexpected += [f"no fault {name}" for name in faults.IN_EVERY_RUN if not result.faults[name]]
        run.clean_up(result)
        observer.finish()
        result.violations, result.events = observer.summary()
        result.seconds = time.monotonic() - began
        return result


class _Observer:
    """The observer's process."""

    def __init__(self, etcd: str, report: Path) -> None:
        self.report = report
        command = [sys.executable, "-m", "tests.cluster.chaos.observer", f"--etcd={etcd}", f"--report={report}"]
        command.append(f"--record={report.with_name('history.gz')}")
        self._process = subprocess.Popen(command, cwd=ROOT)

    def check(self) -> None:
        """AssertionError if it has ended by itself."""
        assert self._process.poll() is None, "the observer has ended"

    def finish(self) -> None:
        """Let it check the end of the run."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def summary(self) -> tuple[list[Json], Json]:
        """Its violations, and its events by kind. AssertionError without a summary: it did not finish."""
        lines = [json.loads(line) for line in self.report.read_text().splitlines()]
        assert lines, f"the observer wrote nothing; see {self.report}"
        assert "summary" in lines[-1], f"the observer did not finish; see {self.report}"
        return lines[:-1], lines[-1]["summary"]["events"]

    def violations(self) -> int:
        """How many so far."""
        return len(self.report.read_text().splitlines()) if self.report.exists() else 0


class _Run:
    def __init__(
        self, env: Environment, planned: list[PlannedJob], observer: _Observer, print_line: Callable[[str], None]
    ) -> None:
        self._env = env
        self._planned = planned
        self._observer = observer
        self._print = print_line
        self._printed_at = 0.0
        self._submitted: list[PlannedJob] = []
        self._objects = other_kinds.planned_objects(env.size)

    def set_up(self) -> None:
        """Namespaces, nodes, flavors, queues, and the first operator."""
        env, plane = self._env, self._env.plane
        for name in (NAMESPACE, *NAMESPACES):
            env.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        for name in NAMESPACES:
            account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
            plane.wait_for(f"{name} has its service account", lambda account=account: not env.api.gone(account))  # type: ignore[misc]
        env.add_all_nodes()
        for flavor in cluster_objects.flavors():
            env.api.create(f"{GROUP}/flavors", flavor)
        for queue in cluster_objects.queues(env.size):
            env.api.create(f"{GROUP}/queues", queue)
        other_kinds.opt_in(env)
        env.operators.start(0)

    def inject_faults(self) -> None:
        """Submit the jobs and inject the faults as scheduled."""
        env = self._env
        for planned in self._planned:
            env.at(planned.at, lambda planned=planned: self._submit(planned))  # type: ignore[misc]
            for action in planned.actions:
                env.at(action.at, lambda planned=planned, action=action: self._apply(planned, action))  # type: ignore[misc]
        faults.plan(env)
        other_kinds.plan(env, self._objects)
        env.begin()
        while env.pending:
            env.run_due()
            self._progress()
            time.sleep(0.02)

    def repair(self) -> None:
        """Repair quotas and operators; the schedule has repaired all nodes."""
        env = self._env
        for queue in cluster_objects.queues(env.size):
            path = f"{GROUP}/queues/{queue['metadata']['name']}"
            env.retry(lambda path=path, queue=queue: env.api.patch(path, {"spec": queue["spec"]}))  # type: ignore[misc]
        for slot in env.operators.slots:
            env.operators.proxy(slot).fast()
            env.operators.thaw(slot)
        env.operators.start(0)

    def wait_for_jobs(self) -> None:
        """Wait until all jobs have ended, and then for a quiet time, so that statuses are checked."""
        env = self._env
        until = env.now + env.size.end_timeout_s
        while env.now < until and not (
            all(_ended(job) for job in self._jobs()) and not other_kinds.unfinished(env, self._objects)
        ):
            self._progress()
            time.sleep(min(2.0, 0.2 + env.size.jobs / 500))
        quiet_until = env.now + env.size.quiet_s
        while env.now < quiet_until:
            self._progress()
            time.sleep(0.5)

    def end_with_large_gang(self) -> list[str]:
        """A gang larger than its queue's guarantee beside a backlog, without any fault."""
        return end_with_large_gang(self._env, self._progress)

    def end_with_hostile_messages(self) -> list[str]:
        """The last fault, without any other."""
        return end_with_hostile_messages(self._env, self._progress)

    def result(self) -> RunResult:
        """Outcomes of the jobs, and which are unexpected."""
        result = RunResult(self._env.size.seed, faults=self._env.counts, slow=self._env.slow)
        jobs = {(job["metadata"]["namespace"], job["metadata"]["name"]): job for job in self._jobs()}
        for planned in self._planned:
            job = jobs.get((planned.namespace, planned.name))
            phase = "deleted" if job is None else _phase(job)
            result.phases[phase] += 1
            result.attempts += 0 if job is None else 1 + int((job.get("status") or {}).get("attempt", 0))
            difference = _unexpected(planned, job)
            if difference:
                result.unexpected.append(f"{planned.namespace}/{planned.name}: {difference}")
        result.unexpected += other_kinds.unfinished(self._env, self._objects)
        return result

    def clean_up(self, result: RunResult) -> None:
        """Delete everything that was created; what is left is a leak."""
        env = self._env
        other_kinds.delete_all(env)
        for namespace in NAMESPACES:
            path = f"{GROUP}/namespaces/{namespace}/trainingjobs"
            env.retry(lambda path=path: env.api.delete(path))  # type: ignore[misc]
        env.retry(lambda: env.api.delete("/api/v1/namespaces/default/pods", gracePeriodSeconds=0))
        for queue in reversed(cluster_objects.queues(env.size)):
            path = f"{GROUP}/queues/{queue['metadata']['name']}"
            env.retry(lambda path=path: env.api.delete(path))  # type: ignore[misc]
        for service in env.retry(lambda: env.api.items("/api/v1/services", labelSelector="muster.dev/job")):
            meta = service["metadata"]
            if not meta.get("ownerReferences"):  # orphaned: the operator deletes pods only
                path = f"/api/v1/namespaces/{meta['namespace']}/services/{meta['name']}"
                env.retry(lambda path=path: env.api.delete_if_exists(path))  # type: ignore[misc]
        until = env.now + 120
        while (left := self._left()) and env.now < until:
            self._progress()
            time.sleep(0.5)
        if not left:
            return
        names = sorted(f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}" for one in left)
        result.unexpected.append(f"{len(left)} objects are not deleted after 120 s: {', '.join(names[:10])}")

    def _left(self) -> list[Json]:
        api = self._env.api
        paths = (f"{GROUP}/trainingjobs", f"{GROUP}/workloads", "/api/v1/pods", f"{GROUP}/queues", "/api/v1/services")
        every = [one for path in paths for one in self._env.retry(lambda path=path: api.items(path))]  # type: ignore[misc]
        return [one for one in every if one["metadata"]["name"] != "kubernetes"]

    # ---- steps

    def _submit(self, planned: PlannedJob) -> None:
        self._env.retry(lambda: self._env.api.create(planned.path, planned.body))
        self._submitted.append(planned)

    def _apply(self, planned: PlannedJob, action: UserAction) -> None:
        path, api = f"{planned.path}/{planned.name}", self._env.api
        late = self._env.now > self._env.size.fault_s + _RUNS_WITHIN_S
        if action.once_it_runs and not late and _phase(self._env.retry(lambda: api.get(path))) != "Running":
            self._env.at(self._env.now + 0.2, lambda: self._apply(planned, action))
            return
        if action.spec is not None:
            self._env.retry(lambda: api.patch(path, {"spec": action.spec}))
            return
        self._env.counts["job_orphaned"] += action.orphan
        options = {"propagationPolicy": "Orphan"} if action.orphan else {}
        self._env.retry(lambda: api.delete(path, **options))

    def _jobs(self) -> list[Json]:
        jobs: list[Json] = self._env.retry(lambda: self._env.api.items(f"{GROUP}/trainingjobs"))
        return jobs

    def _progress(self) -> None:
        self._observer.check()
        self._env.operators.check()
        self._env.plane.revive_scheduler()
        if self._env.now < self._printed_at + 10.0:
            return
        self._printed_at = self._env.now
        phases = Counter(_phase(job) for job in self._jobs())
        self._print(
            f"{self._env.now:5.0f} s  {len(self._submitted)} of {len(self._planned)} submitted: {_counted(phases)}; "
            f"{sum(self._env.counts.values())} faults, {self._observer.violations()} violations"
        )


def _phase(job: Json) -> str:
    return str((job.get("status") or {}).get("phase", "new"))


def _ended(job: Json) -> bool:
    return _phase(job) in ("Succeeded", "Failed", "Cancelled")


def _unexpected(planned: PlannedJob, job: Json | None) -> str:
    """How the job differs from its expected outcome; "" if it does not."""
    if planned.outcome == "deleted":
        return "" if job is None else "still exists"
    if job is None:
        return "does not exist"
    phase, reason = _phase(job), (job.get("status") or {}).get("reason", "")
    expected = _ENDS[planned.outcome]
    return "" if (phase, reason) in expected else f"must be one of {sorted(expected)}, is {phase} ({reason})"
