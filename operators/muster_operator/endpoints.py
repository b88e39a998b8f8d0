"""What the HTTP endpoints of the operator answer: health, metrics, positions, the newest snapshot."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.engine import encode_snapshot
from muster.kube.lease import Fence
from muster_operator.cache.cached_object import resource_of
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.informers import InformerSet
from muster_operator.leader import Leader
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.server import ServerCallbacks
from muster_operator.writes.refused import RefusedStatuses

_LOG = logging.getLogger("muster.operator")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The answers. `fence`: whether this operator may write now."""

    leader: Leader
    fence: Fence
    informers: InformerSet
    cache: ClusterCache
    job_metrics: JobMetrics
    metrics: OperatorMetrics
    refused_statuses: RefusedStatuses

    def callbacks(self) -> ServerCallbacks:
        """The answers, by endpoint."""
        return ServerCallbacks(
            self.exposition, self._liveness_error, self._readiness_error, self._positions, self._snapshot
        )

    def dump_snapshot(self, folder: Path) -> None:
        """Write the newest snapshot to a file for `muster replay`."""
        data = self._snapshot()
        if data is None:
            _LOG.warning("no snapshot: this operator has not completed a scheduling cycle")
            return
        path = folder / f"muster-snapshot-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
        try:
            path.write_bytes(data)
        except OSError as error:
            _LOG.error("snapshot not written", extra={"file": str(path), "why": str(error)})
            return
        _LOG.info("snapshot written", extra={"file": str(path)})

    def _liveness_error(self) -> str:
        return self.informers.failure()

    def _readiness_error(self) -> str:
        missing = self.informers.unsynced()
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def _positions(self) -> Iterable[dict[str, Any]]:
        term = self.leader.term
        waits = {} if term is None or term.last_cycle is None else term.last_cycle.waits
        for uid, wait in waits.items():
            known = self.cache.workload(uid)
            if known is not None:
                yield {
                    "namespace": known.namespace,
                    "name": known.metadata.name,
                    "queue": known.queue,
                    "reason": wait.reason,
                    "message": wait.message,
                    "position": wait.position,
                    "estimatedStart": wait.estimated_start,
                }

    def _snapshot(self) -> bytes | None:
        term = self.leader.term
        return None if term is None or term.last_cycle is None else encode_snapshot(term.last_cycle.snapshot)

    def exposition(self) -> bytes:
        leads = self.fence()
        if leads:  # otherwise several operators would count the same jobs
            self.job_metrics.refresh()
        else:
            self.job_metrics.reset()
        self.metrics.set_refused_statuses(self.refused_statuses.counts() if leads else {})
        self.metrics.leading.set(leads and self.leader.term is not None)
        for handler in self.cache.objects.handlers:
            self.metrics.kinds.labels(resource_of(handler.row).full_name).set(handler.exists)
        for resource, version in self.informers.resource_versions().items():
            self.metrics.watch_version.labels(resource).set(version)
        return self.metrics.exposition()
