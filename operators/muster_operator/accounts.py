"""What is told of jobs as numbers: how many wait where, how long they waited, how many GPU-seconds they had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from muster import spec
from muster.lifecycle import is_admitted, is_finished
from muster.lifecycle.places import from_status
from muster.snapshot import pod_request
from muster_operator.metrics import Metrics

_Cell = tuple[str, str, str]  # queue, namespace, resource


@dataclass(slots=True)
class _Running:
    since: float
    amounts: dict[_Cell, int]


class Accounts:
    """Keeps `metrics` up to date from acknowledged statuses and, for the depth of queues, from all jobs."""

    def __init__(
        self, metrics: Metrics, jobs: Callable[[], Iterable[spec.TrainingJob]], clock: Callable[[], float]
    ) -> None:
        self.round_began = 0.0
        self._metrics = metrics
        self._jobs = jobs
        self._clock = clock
        self._running: dict[str, _Running] = {}

    def wrote(self, before: spec.TrainingJob, status: spec.TrainingJobStatus) -> None:
        """A status was acknowledged."""
        now, queue = self._clock(), before.spec.queue
        if is_admitted(status) and not is_admitted(before.status):
            submitted_at = now if status.submitted_at is None else status.submitted_at
            self._metrics.wait_s.observe(max(0.0, now - submitted_at), (queue,))
            self._metrics.admission_s.observe(max(0.0, now - self.round_began))
            self._metrics.admitted.add(1.0, (queue,))
        self._charge(before.metadata.uid, before, status, now)

    def scrape(self) -> None:
        """Bring gauges and running counters up to now."""
        now, depth, here = self._clock(), dict[tuple[str, ...], float](), set[str]()
        for job in self._jobs():
            here.add(job.metadata.uid)
            key = (job.spec.queue, job.status.phase)
            depth[key] = depth.get(key, 0.0) + 1
            self._charge(job.metadata.uid, job, job.status, now)
        for uid in self._running.keys() - here:
            self._settle(uid, now)
            del self._running[uid]
        self._metrics.depth.put(dict(depth))

    def _charge(self, uid: str, job: spec.TrainingJob, status: spec.TrainingJobStatus, now: float) -> None:
        self._settle(uid, now)
        if not is_admitted(status) or is_finished(status):
            self._running.pop(uid, None)
            return
        requests = {role.name: pod_request(role.template.spec) for role in job.spec.roles}
        amounts: dict[_Cell, int] = {}
        for part in from_status(status.placement):
            for resource, amount in requests.get(part.role, ()):
                if "gpu" in resource:
                    cell = (job.spec.queue, job.metadata.namespace or "default", resource)
                    amounts[cell] = amounts.get(cell, 0) + amount * part.replicas
        if amounts:
            self._running[uid] = _Running(now, amounts)

    def _settle(self, uid: str, now: float) -> None:
        running = self._running.get(uid)
        if running is not None:
            for cell, amount in running.amounts.items():
                self._metrics.gpu_s.add(amount * max(0.0, now - running.since), cell)
            running.since = now
