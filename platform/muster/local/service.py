"""The calls of the daemon's API, independent of HTTP: plain values in and out.

Methods hold the lock of the store only as long as needed; the engine plans without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster import model
from muster.api import spec
from muster.api.yaml_input import AnyObject
from muster.engine import check_feasibility, encode_snapshot
from muster.errors import ClusterError, InvalidSpec, NotFound, Refused
from muster.heartbeats.parse import StepPoint
from muster.kinds.trainingjob.adapter import submitted_anew
from muster.local.cluster import LocalCluster
from muster.local.home import Home, log_fault
from muster.local.objects import ObjectRegistry, ObjectResult
from muster.local.store import SqliteStore
from muster.usage.report import RecordedUsage
from muster.visibility.items import PreemptionLog
from muster.visibility.list_types import ItemList
from muster.visibility.lists import answer, job_curve, requested_job
from muster.visibility.requests import CURVES, parse_request
from muster.visibility.state import CycleView, ReadState, with_live_wait
from muster.visibility.types import Item
from muster.workload.conditions import LOGS_WRITABLE, is_admitted, is_finished, set_condition

_PATCHABLE_FIELDS = ("suspend", "cancel")


class ChangeNotifier:
    """Wakes watching requests after changes, and has the result of the last cycle."""

    def __init__(self) -> None:
        self.cycle: CycleView | None = None
        self.preemptions = PreemptionLog()
        self._cycles = 0
        self._condition = threading.Condition()

    def publish(self, waits: Mapping[str, model.Wait], snapshot: model.Snapshot) -> None:
        self._cycles += 1
        self.cycle = CycleView(str(self._cycles), waits, snapshot)

    def notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        with self._condition:
            self._condition.wait(timeout_s)


class DaemonService:
    """The calls of the API."""

    def __init__(
        self, home: Home, store: SqliteStore, cluster: LocalCluster, objects: ObjectRegistry, notifier: ChangeNotifier
    ) -> None:
        self._home = home
        self._store = store
        self._cluster = cluster
        self._objects = objects
        self._notifier = notifier
        self._log_faults: dict[str, float] = {}  # by uid: since when its logs cannot be written

    # ---- jobs

    def submit(
        self, jobs: Sequence[spec.TrainingJob], dry_run: bool, environments: Sequence[Mapping[str, str] | None] = ()
    ) -> list[spec.TrainingJob]:
        """Accept jobs, all or none; `environments` are those of the submitter, one per job. Raises `Refused` for a job
        that could never start."""
        with self._cluster.lock:
            stored = self._objects.submit(jobs, dry_run=True, environments=environments)
            state = self._cluster.read_state()
        for job in stored:
            wait = check_feasibility(submitted_anew(job, state.now), state)
            if wait is not None:
                error = Refused(wait.message, reason=wait.reason)
                error.job = f"{job.metadata.namespace}/{job.metadata.name}"
                raise error
        if dry_run:
            return stored
        with self._cluster.lock:
            return self._objects.submit(jobs, dry_run=False, environments=environments)

    def jobs(self, namespace: str | None) -> list[spec.TrainingJob]:
        """All jobs, or those of one namespace, oldest first."""
        with self._cluster.lock:
            jobs = list(self._store.jobs.values())
            self._prune_log_faults()
        return [self._with_live_status(job) for job in jobs if namespace in (None, job.metadata.namespace)]

    def job(self, namespace: str, name: str) -> spec.TrainingJob:
        with self._cluster.lock:
            job = self._objects.find(namespace, name)
            self._prune_log_faults()
        return self._with_live_status(job)

    def patch(self, namespace: str, name: str, fields: Mapping[str, Any]) -> spec.TrainingJob:
        """Set suspend or cancel."""
        for field, value in fields.items():
            if field not in _PATCHABLE_FIELDS or not isinstance(value, bool):
                message = f"{field}: must be suspend or cancel, with value true or false; got {value!r}"
                raise InvalidSpec(message, field=field)
        with self._cluster.lock:
            return self._objects.patch(namespace, name, fields)

    def retry(self, namespace: str, name: str) -> spec.TrainingJob:
        """Queue the failed indices of an array again."""
        with self._cluster.lock:
            return self._objects.retry(namespace, name)

    def scale(self, namespace: str, name: str, replicas: Mapping[str, Any]) -> spec.TrainingJob:
        for role, count in replicas.items():
            if type(count) is not int:
                raise InvalidSpec(f"replicas of {role}: must be an integer; got {count!r}", field=role)
        with self._cluster.lock:
            return self._objects.scale(namespace, name, replicas)

    def events(self, namespace: str, name: str) -> list[dict[str, Any]]:
        with self._cluster.lock:
            job = self._objects.find(namespace, name)
            return [event.to_json() for event in self._store.events(job.metadata.uid)]

    def pods(self, namespace: str, name: str) -> dict[str, Any]:
        """The pods of a job, its folders, and the job itself."""
        with self._cluster.lock:
            job = self._objects.find(namespace, name)
            records = list(self._store.pods.get(job.metadata.uid, {}).values())
        pods = [
            {
                "name": pod.name, "role": pod.role, "index": pod.index, "attempt": pod.attempt, "node": pod.node,
                "phase": pod.phase, "gpus": list(pod.devices or ()), "exitCode": pod.exit_code, "reason": pod.reason,
            }
            for pod in records
        ]  # fmt: skip
        return {
            "runDir": str(self._cluster.run_dir(job)),
            "podsDir": str(self._home.job_pods_dir(job.metadata.uid)),
            "pods": pods,
            "job": self._with_live_status(job).model_dump(mode="json", by_alias=True, exclude_none=True),
        }

    # ---- queues, flavors, nodes

    def apply(
        self, documents: Sequence[AnyObject], environments: Sequence[Mapping[str, str] | None] = ()
    ) -> list[ObjectResult]:
        """Create or change objects; `environments` are those of the client, one per object."""
        with self._cluster.lock:
            return self._objects.apply(documents, environments)

    def delete_all(self, targets: Sequence[tuple[str, str, str]]) -> list[ObjectResult]:
        """Delete objects, (kind, name, namespace) each, all or none."""
        with self._cluster.lock:
            return self._objects.delete_all(targets)

    def read(self, target: str) -> Item | ItemList:
        """The answer of the read API (`muster.visibility`) to the path and query of a URL. The user of this host may
        read everything."""
        request = parse_request(target)
        notifier = self._notifier
        with self._cluster.lock:  # jobs that are removed between the two would be missing
            observed = self._cluster.read_state()
            usage = RecordedUsage()
            if request.usage is not None:
                usage = self._store.recorded_usage(request.usage.period(observed.now))
        state = ReadState(
            observed,
            notifier.cycle,
            "daemon",
            leading=True,
            preemptions=notifier.preemptions.newest_first(),
            recorded_usage=usage,
        )
        if request.resource.plural == CURVES:
            job = requested_job(state, request, lambda namespace: True)
            return job_curve(job, _read_curve(self._cluster.run_dir(job)))
        return answer(state, request, lambda namespace: True)

    def flavors(self) -> list[spec.Flavor]:
        with self._cluster.lock:
            return sorted(self._store.flavors.values(), key=lambda flavor: flavor.metadata.name)

    def snapshot(self) -> bytes:
        """The planner's input in the last cycle, for `muster replay`."""
        if self._notifier.cycle is None:
            raise NotFound("no scheduling cycle has run yet; try again in a moment")
        return encode_snapshot(self._notifier.cycle.snapshot)

    # ---- helpers

    def unfinished_jobs(self) -> list[spec.TrainingJob]:
        with self._cluster.lock:
            return [job for job in self._store.jobs.values() if not is_finished(job.status)]

    def wait_for_change(self, timeout_s: float) -> None:
        self._notifier.wait(timeout_s)

    def _with_live_status(self, job: spec.TrainingJob) -> spec.TrainingJob:
        """The job with what its stored status lacks: the result of the last cycle, and whether its logs can be
        written."""
        if is_finished(job.status):
            return job
        if is_admitted(job.status):
            return self._with_log_fault(job)
        cycle = self._notifier.cycle
        return job if cycle is None else with_live_wait(job, cycle.waits, time.time())

    def _prune_log_faults(self) -> None:
        """Remove those of jobs that have finished or were deleted. The caller holds the lock."""
        for uid in list(self._log_faults):
            job = self._store.jobs.get(uid)
            if job is None or is_finished(job.status):
                self._log_faults.pop(uid, None)

    def _with_log_fault(self, job: spec.TrainingJob) -> spec.TrainingJob:
        fault = log_fault(self._cluster.run_dir(job))
        if fault is None:
            self._log_faults.pop(job.metadata.uid, None)
            return job
        since = self._log_faults.setdefault(job.metadata.uid, time.time())
        status = set_condition(job.status, LOGS_WRITABLE, False, *fault, since)
        return job.model_copy(update={"status": status})


def _read_curve(run_dir: Path) -> list[StepPoint]:
    # Imported only when asked: the daemon of a user who asks for no curve does not need the package.
    from muster.tracing.runs.step_curve import read_step_curve
    from muster.tracing.shared_folder import SharedFolder

    try:
        return read_step_curve(SharedFolder(run_dir))
    except OSError as error:
        raise ClusterError(f"metrics/rank-0.jsonl cannot be read: {error.strerror or error}") from error
