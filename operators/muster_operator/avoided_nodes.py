"""Nodes that all jobs avoid after failures there: a gauge, a log line, and an Event of the node."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client import Gauge

from muster.api.spec import ObjectMeta, TrainingJobStatus
from muster.cluster import RecordEvent
from muster.kube.resources import NODES
from muster.workload.blame import AvoidedNode
from muster.workload.transitions import POD_REJECTED
from muster_operator.events import JobEvents
from muster_operator.logs import CYCLE

_LOG = logging.getLogger("muster.operator")


@dataclass(slots=True)
class AvoidedNodeReporter:
    """Reports changes. A new leader reports the nodes that it finds avoided once more."""

    events: JobEvents
    gauge: Gauge
    _reported: Mapping[str, AvoidedNode] = field(default_factory=dict)

    def report(self, avoided: Mapping[str, AvoidedNode]) -> None:
        """These nodes are avoided now, by name."""
        for name in sorted(avoided.keys() - self._reported.keys()):
            self._record(name, avoided[name])
        for name in sorted(self._reported.keys() - avoided.keys()):
            _LOG.info("node is no longer avoided", extra={"node": name})
        self._reported = avoided
        self.gauge.set(len(avoided))

    def reset(self) -> None:
        """Another operator leads."""
        self._reported = {}
        self.gauge.set(0)

    def _record(self, name: str, avoided: AvoidedNode) -> None:
        failures = " and ".join(self._failure_text(uid, name) for uid in avoided.job_uids)
        until = datetime.fromtimestamp(avoided.until, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        message = f"no gang is placed on this node until {until}, after failures of {failures}"
        _LOG.warning("node is avoided", extra={"node": name, "until": until, "why": f"failures of {failures}"})
        meta = ObjectMeta(name=name, uid=self.events.cache.nodes.uid(name))
        event = RecordEvent("", "Warning", "NodeAvoided", message)
        self.events.record_about(NODES, meta, event, CYCLE.get())

    def _failure_text(self, uid: str, node: str) -> str:
        """NAMESPACE/NAME, with the kubelet's message if it rejected a pod of the job last."""
        known = self.events.cache.workload(uid)
        if known is None:
            return uid
        status = known.status
        reason = next((entry.reason for entry in status.blamed_nodes if entry.node == node), "")
        failure = status.last_failure if isinstance(status, TrainingJobStatus) else None
        if reason == POD_REJECTED and failure is not None and failure.node == node:
            reason = f"{failure.reason}: {failure.log_tail}"
        return f"{known.key} ({reason})" if reason else known.key
