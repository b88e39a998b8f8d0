"""Usage and numbers of jobs in the statuses of queues, for `kubectl get mq`: computed and written seldom, on change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from muster.api import spec
from muster.api.spec import QueueFlavorUsage, QueueUsageStatus
from muster.model import Snapshot
from muster.tables import QueueQuotaRow, queue_rows, waiting_by_queue
from muster.workload.protocol import Workload

USAGE_REFRESH_S = 30.0
"""Usage is computed at most this often, and written into those queues in which it changed."""


@dataclass(slots=True)
class QueueUsageThrottle:
    """What usage was computed from last, when, and which of it the queues do not have yet: a cycle's last writes may be
    left out, and another cycle follows then."""

    _last: Snapshot | None = None
    _unwritten: dict[str, QueueUsageStatus] = field(default_factory=dict)
    _computed_at: float = float("-inf")

    def update(
        self, queues: Sequence[spec.Queue], workloads: Sequence[Workload], snapshot: Snapshot
    ) -> tuple[dict[str, QueueUsageStatus], float | None]:
        """The usage of queues in which it differs from their status, and when to call again (None: once something
        changes)."""
        written = {queue.metadata.name: queue.status.usage for queue in queues}
        self._unwritten = {
            name: usage
            for name, usage in self._unwritten.items()
            if name in written and not _is_same_time(written[name], usage)
        }
        if not self._unwritten and not self._may_have_changed(snapshot):
            return {}, None
        due = self._computed_at + USAGE_REFRESH_S
        if snapshot.now < due:
            return {}, due
        self._last, self._computed_at = snapshot, snapshot.now
        changed: dict[str, QueueUsageStatus] = {}
        waiting = waiting_by_queue((one.queue, one.status) for one in workloads if not one.is_group)
        for row in queue_rows(queues, snapshot, waiting):
            usage = QueueUsageStatus(
                pending_jobs=row["waiting"],
                admitted_jobs=row["admitted"],
                flavors=[
                    QueueFlavorUsage(
                        flavor=entry["flavor"],
                        used=entry["used"],
                        borrowed=entry["borrowed"],
                        guaranteed=entry["guaranteed"],
                    )
                    for entry in row["resources"]
                ],
                used=describe_amounts(row["resources"], "used"),
                guaranteed=describe_amounts(row["resources"], "guaranteed"),
                at=snapshot.now,
            )
            before = written[row["name"]]
            if before is None or before.model_copy(update={"at": usage.at}) != usage:
                changed[row["name"]] = usage
        self._unwritten = changed
        return changed, None

    def _may_have_changed(self, snapshot: Snapshot) -> bool:
        """Whether a part that usage depends on is another object: unchanged parts of snapshots are the same."""
        last = self._last
        parts = ("queues", "pending", "running", "nominations")
        return last is None or any(getattr(last, part) is not getattr(snapshot, part) for part in parts)


def describe_amounts(rows: Iterable[QueueQuotaRow], column: Literal["used", "guaranteed"]) -> str:
    """Amounts of all flavors other than 0, such as "h200: 12 nvidia.com/gpu; a100: 4 nvidia.com/gpu, 8 cpu"."""
    flavors = (
        (row["flavor"], [f"{amount} {resource}" for resource, amount in row[column].items() if amount != "0"])
        for row in rows
    )
    return "; ".join(f"{flavor}: {', '.join(amounts)}" for flavor, amounts in flavors if amounts)


def _is_same_time(written: QueueUsageStatus | None, usage: QueueUsageStatus) -> bool:
    """Whether a queue has this usage: times are written with microseconds."""
    return written is not None and abs(written.at - usage.at) < 1e-3
