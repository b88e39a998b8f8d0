"""What was charged, computed from every status that was written, independently of the segments in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tests.engine.checked_cluster import GPU, Watched, submit
from tests.engine.faults import Arrivals
from tests.engine.objects import flavor, nodes, queue

from muster.cluster import RemoveJob, Write, WriteStatus
from muster.usage.totals import HOUR_MS, UsageTotals
from muster.workload.conditions import is_admitted
from muster.workload.observed import ObservedState
from muster.workload.placement import from_status

Cells = dict[tuple[int, str, str], int]
"""GPU-milliseconds by (hour, queue, user)."""


class ChargedCluster(Watched):
    """Keeps what each job takes, from when, and adds it up when that changes. `recorded_usage`: what the engine
    observes."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.recorded_usage: dict[str, int] = {}
        self.past: Cells = {}
        self._present: dict[str, tuple[int, int, str, str]] = {}  # by uid: since, GPUs, queue, user

    def observe(self) -> ObservedState:
        return replace(super().observe(), recorded_usage=self.recorded_usage)

    def apply_one(self, write: Write) -> None:
        before = None
        if isinstance(write, RemoveJob) and self.has_job(write.job_uid):
            before = self.job(write.job_uid)
        super().apply_one(write)
        if before is not None and not self.has_job(before.metadata.uid):
            self._change(before.metadata.uid, None)
            self.on_removed(before)
        if isinstance(write, WriteStatus):
            one = self.job(write.job_uid)
            gpus = 0
            if is_admitted(one.status):
                each = int(one.spec.roles[0].template.spec.containers[0].resources.limits[GPU])
                gpus = each * sum(part.replicas for part in from_status(one.status.placement))
            user = one.metadata.labels.get("muster.dev/user", "")
            self._change(write.job_uid, (gpus, one.spec.queue, user) if is_admitted(one.status) else None)

    def on_removed(self, job: Any) -> None:
        """A job was removed at `now`."""

    def charged(self) -> Cells:
        """Until now."""
        cells = dict(self.past)
        for uid in self._present:
            self._add(cells, uid)
        return {key: amount for key, amount in cells.items() if amount}

    def _change(self, uid: str, new: tuple[int, str, str] | None) -> None:
        old = self._present.get(uid)
        if (None if old is None else old[1:]) == new:
            return
        if old is not None:
            self._add(self.past, uid)
            del self._present[uid]
        if new is not None:
            self._present[uid] = (round(self.now * 1000), *new)

    def _add(self, cells: Cells, uid: str) -> None:
        since, gpus, queue_name, user = self._present[uid]
        for at in range(since // HOUR_MS, round(self.now * 1000) // HOUR_MS + 1):
            length = min(round(self.now * 1000), (at + 1) * HOUR_MS) - max(since, at * HOUR_MS)
            key = (at, queue_name, user)
            cells[key] = cells.get(key, 0) + gpus * max(0, length)


def charged_cluster(arrivals: Arrivals, start: float) -> ChargedCluster:
    """Two queues on two nodes; jobs arrive after `start`, each with a user."""
    tree = [queue("all", 8), queue("red", 4, "all"), queue("blue", 4, "all")]
    cluster = ChargedCluster(nodes(2, gpus=4), [flavor()], tree)
    cluster.advance(start)
    for number, (at, wanted, work) in enumerate(arrivals):
        labels = {"muster.dev/user": f"user{number % 2}"} if number % 3 else {}
        labelled = wanted.model_copy(update={"metadata": wanted.metadata.model_copy(update={"labels": labels})})
        cluster.schedule(start + at, partial(submit, cluster, labelled, work))
    return cluster


def gpu_cells(every: Sequence[UsageTotals]) -> Cells:
    """The sums of GPUs in this form."""
    cells: Cells = {}
    for totals in every:
        for key, hour, amount in totals.cells():
            if key.resource == GPU:
                name = (hour, key.queue, key.user)
                cells[name] = cells.get(name, 0) + amount
    return cells
