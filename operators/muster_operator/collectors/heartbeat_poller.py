"""Polls all collectors every few seconds while this operator leads: how far is each job?

Results go to `cache.heartbeats`; the leader is woken once a poll, and only if something changed. A collector that does
not answer for a long time causes an Event; its job is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.workload.conditions import is_finished
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cached_pod import MAX_TRACES, CachedPod
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.heartbeats import HeartbeatReport
from muster_operator.collectors.heartbeat_client import TIMEOUT_S, HeartbeatTarget, PollResult, poll_all
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import collector_port, lead_role
from muster_operator.pod_builder.run_folder import has_durable_checkpoints

_LOG = logging.getLogger("muster.operator")
_MIN_SWEEP_S = 5.0


def lead_collector(cache: ClusterCache, known: CachedJob) -> CachedPod | None:
    """The job's lead pod, if it runs and has a collector.

    Includes terminating pods and suspended jobs: they write a checkpoint in their grace period."""
    role = lead_role(known.job.spec)
    pod = cache.pods.lead_pod(known.uid, role.name)
    if pod is None or pod.view is None or not pod.has_collector or not pod.ip or role.name not in known.templates:
        return None
    return pod if pod.view.phase == "Running" else None


def heartbeat_target(cache: ClusterCache, tokens: CollectorTokens, known: CachedJob) -> HeartbeatTarget | None:
    """Where `lead_collector` is polled; None without one. Requires loaded tokens."""
    pod = lead_collector(cache, known)
    if pod is None:
        return None
    role = lead_role(known.job.spec)
    on_host = bool(role.template.spec.host_network)
    port = collector_port(known.uid, role.name, 0, on_host_network=on_host)
    durable = has_durable_checkpoints(known.job.spec, role)
    token = tokens.token(known.uid)
    return HeartbeatTarget(known.uid, pod.name, pod.ip, port, token, durable, namespace=known.name.namespace)


@dataclass(slots=True)
class HeartbeatPoller:
    """Polls repeatedly, with at least `interval_s` between the starts of two polls."""

    cache: ClusterCache
    tokens: CollectorTokens
    metrics: OperatorMetrics
    interval_s: float
    is_leading: Callable[[], bool]  # whether this operator leads
    record_event: Callable[[RecordEvent], None]
    on_change: Callable[[], None]
    unreachable_after_s: float = 120.0  # then an Event is recorded
    timeout_s: float = TIMEOUT_S
    _unreachable: dict[str, tuple[str, float]] = field(default_factory=dict)  # by job: its pod, since when
    _reported: set[str] = field(default_factory=set)  # of them, those with an Event

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            began = time.monotonic()
            try:
                self._prune()
                if self.is_leading():
                    await self._sweep()
            except ClusterError as error:  # of the key
                _LOG.warning("collectors not polled", extra={"why": str(error)})
            await asyncio.sleep(max(0.05, began + self.interval_s - time.monotonic()))

    def _prune(self) -> None:
        """Forget heartbeats of jobs that are deleted or finished; also while another operator leads, since termination
        messages arrive at any time."""
        jobs = list(self.cache.jobs.all())
        self.cache.heartbeats.retain({known.uid for known in jobs if not is_finished(known.job.status)})
        self.cache.trace_counts.retain({known.uid for known in jobs})
        self.cache.hung_ranks.retain({known.uid for known in jobs})

    async def _sweep(self) -> None:
        await self.tokens.load()
        targets = sorted(
            self._targets(), key=lambda target: target.uid in self._unreachable
        )  # unreachable ones take the most time
        outcomes = await asyncio.to_thread(poll_all, targets, max(self.interval_s, _MIN_SWEEP_S), self.timeout_s)
        changes = [self._handle_safely(outcome, time.time()) for outcome in outcomes]
        polled = {target.uid for target in targets}
        for uid in self._unreachable.keys() - polled:
            self._mark_reachable(uid)
        self.metrics.unreachable_collectors.set(len(self._unreachable))
        if any(changes):
            self.on_change()

    def _targets(self) -> Iterator[HeartbeatTarget]:
        for known in self.cache.jobs.all():
            if not is_finished(known.job.status) and (found := heartbeat_target(self.cache, self.tokens, known)):
                yield found

    def _handle_safely(self, result: PollResult, now: float) -> bool:
        try:
            return self._handle(result, now)
        except Exception:  # one bad answer must not affect the others
            _LOG.exception("invalid heartbeat", extra={"pod": result.target.pod})
            self.metrics.component_failures.labels("collectors").inc()
            return False

    def _handle(self, result: PollResult, now: float) -> bool:
        """Record a result; whether the engine would see a change."""
        target, answer = result.target, result.response
        if answer is None:
            if self._is_running(target):
                self.metrics.heartbeats.labels("unreachable").inc()
                self._mark_unreachable(target, result.error, now)
            return False
        self.metrics.heartbeats.labels("ok").inc()
        self._mark_reachable(target.uid)
        pod = self.cache.pods.get(target.uid, target.pod)
        if pod is not None and pod.view is not None and 0 < answer.traces <= MAX_TRACES:
            self.cache.trace_counts.record(target.uid, (pod.view.role, pod.view.index), answer.traces)
        if answer.unreadable:
            _LOG.debug("collector", extra={"pod": target.pod, "why": "; ".join(answer.unreadable)})
        report = HeartbeatReport(
            target.pod, answer.now, answer.heartbeat or {}, answer.checkpoint or {}, target.durable, answer.run_time
        )
        return self.cache.heartbeats.on_response(target.uid, report, now)

    def _is_running(self, target: HeartbeatTarget) -> bool:
        """Whether the pod should still answer."""
        pod = self.cache.pods.get(target.uid, target.pod)
        return pod is not None and pod.view is not None and pod.view.phase == "Running" and not pod.view.deleting

    def _mark_unreachable(self, target: HeartbeatTarget, error: str, now: float) -> None:
        pod, since = self._unreachable.get(target.uid, (target.pod, now))
        if pod != target.pod:
            since = now
            self._reported.discard(target.uid)
        self._unreachable[target.uid] = target.pod, since
        if now - since >= self.unreachable_after_s and target.uid not in self._reported:
            self._reported.add(target.uid)
            message = (
                f"the collector of {target.pod} at {target.host} port {target.port} does not answer: {error}; "
                "stalls of the job are not detected meanwhile"
            )
            _LOG.warning("collector unreachable", extra={"pod": target.pod, "why": error})
            self.record_event(RecordEvent(target.uid, "Warning", "CollectorUnreachable", message))

    def _mark_reachable(self, uid: str) -> None:
        self._unreachable.pop(uid, None)
        self._reported.discard(uid)
