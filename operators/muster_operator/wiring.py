"""Builds the components of the operator from its settings, and runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from muster.backoff import Backoff
from muster.kube.async_client import AsyncKubeClient
from muster.kube.lease import Fence
from muster.usage.report import RecordedUsage
from muster.workload.timeouts import Timeouts
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.deleted_usage import DeletedUsage
from muster_operator.cache.specs import TemplateCache
from muster_operator.captures.capture_cache import CaptureCache
from muster_operator.captures.capture_controller import CaptureController
from muster_operator.collectors.curve_client import CurveReader
from muster_operator.collectors.heartbeat_poller import HeartbeatPoller
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.device_classes import poll_device_classes
from muster_operator.dry_run import DryRuns, PodTemplateReader
from muster_operator.endpoints import Endpoints
from muster_operator.events import EventRecorder, JobEvents
from muster_operator.hang_sentences import HangSentences
from muster_operator.informers import InformerSet
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.job_status import TraceStatusTracker
from muster_operator.leader import Leader
from muster_operator.leadership import Leadership
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.pod_builder.pods import PodConfig
from muster_operator.runners.create_pods.pod_control import PodControl
from muster_operator.runners.create_pods.pod_groups import PodGroups
from muster_operator.runners.create_pods.pod_owner import pod_owner
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.runners.suspended import ObjectControl
from muster_operator.server import OperatorServer
from muster_operator.settings import Settings
from muster_operator.shared_key import SharedKey
from muster_operator.supervision import ComponentExited, exited_components, supervise
from muster_operator.usage.config_maps import ConfigMapNames
from muster_operator.usage.recorder import UsageRecorder
from muster_operator.visibility.server import VisibilityServer
from muster_operator.visibility.state_source import StateSource
from muster_operator.writes.queue import WriteQueue
from muster_operator.writes.uncertain import UncertainWrites
from muster_operator.writes.writer import JobWriter


class Operator:
    """All components of the operator. `review_api` None: it has no read API."""

    def __init__(
        self,
        settings: Settings,
        api: AsyncKubeClient,
        fence: Fence,
        metrics: OperatorMetrics,
        review_api: AsyncKubeClient | None = None,
    ) -> None:
        self._settings, self._api, self._review_api = settings, api, review_api
        self._fence, self._metrics = fence, metrics
        self._wakeup, self._usage_wakeup, self._capture_wakeup = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._key_name = f"{settings.lease_name}-collector-key"
        self._observe()
        self._write()
        self._lead()
        self._follow_jobs()
        self._answer()

    # ---- the components, each after those that it needs

    def _observe(self) -> None:
        """What is read of the cluster."""
        settings, api, config = self._settings, self._api, self._settings.collectors.config
        self._pod_config = PodConfig(settings.priority_class, config)
        self._signer = PodSigner(SharedKey(api, settings.namespace, self._key_name))
        self._tokens = CollectorTokens(api, config, self._signer.key) if config.image else None
        templates = PodTemplateReader(api, TemplateCache())
        self._dry_runs = DryRuns(api, self._pod_config, templates, settings.dry_run_refresh_s)
        self._cache = ClusterCache(
            self._dry_runs,
            pod_owner,
            self._wakeup.set,
            collectors=settings.collectors,
            templates=templates.templates,
            most_template_bytes=settings.template_bytes,
            deleted_usage=DeletedUsage(time.time, self._usage_wakeup.set),
            pod_security=settings.pod_security,
            signatures=self._signer,
            kinds=settings.kinds,
        )
        self._capture_cache = CaptureCache(self._capture_wakeup.set)
        self._informers = InformerSet(api, self._cache, self._capture_cache)
        self._job_metrics = JobMetrics(self._metrics, self._cache.visible_workloads, self._cache.queues.all, time.time)

    def _write(self) -> None:
        """What is written, and what creates pods."""
        settings, api, cache, metrics = self._settings, self._api, self._cache, self._metrics
        self._uncertain_writes = UncertainWrites(api, cache, self._wakeup.set)
        self._queue = queue = WriteQueue(api, cache, self._uncertain_writes)
        self._events = EventRecorder(api, queue.must_defer_events, metrics.dropped_events.inc)
        self._job_events = events = JobEvents(cache, self._events, settings.identity)
        groups = None
        if settings.pod_groups:
            groups = PodGroups(api, cache.pods, events.record, metrics.gangs_without_pod_group.inc)
        pods = PodControl(
            api, cache, queue, self._dry_runs, self._signer, self._pod_config, events.record, self._tokens, groups
        )
        self._usage = None
        if settings.usage_retention_days:
            self._usage = UsageRecorder(
                queue=queue,
                cache=cache,
                names=ConfigMapNames(settings.namespace, settings.lease_name),
                retention_days=settings.usage_retention_days,
                term=lambda: self._leadership.term_id(),  # noqa: PLW0108 - it is created below
                reads_as_standby=self._review_api is not None,
                wakeup=self._usage_wakeup,
            )
        traces = TraceStatusTracker(cache, settings.collectors.config)
        objects = ObjectControl(api, cache, queue, self._signer, events.record)
        self._writer = JobWriter(api, cache, queue, pods, objects, events, traces, self._job_metrics, self._usage)

    def _lead(self) -> None:
        """What decides while this operator leads."""
        settings = self._settings
        invalid_objects = InvalidObjectReporter(self._cache, self._queue, self._events, settings.identity)
        timeouts = Timeouts(progress_refresh_s=settings.progress_interval_s) if self._tokens else Timeouts()
        self._hangs = HangSentences(self._wakeup.set)
        self._leader = Leader(
            self._writer,
            invalid_objects,
            self._metrics,
            self._fence,
            self._wakeup,
            timeouts,
            self._hangs,
            self._signer.key,
        )
        self._leadership = Leadership(
            self._leader, self._fence, self._informers, self._forget, self._on_term_begins, self._job_metrics.reset
        )

    def _follow_jobs(self) -> None:
        """What reads and traces running jobs."""
        self._heartbeat_poller = None
        if self._tokens is not None:
            self._heartbeat_poller = HeartbeatPoller(
                cache=self._cache,
                tokens=self._tokens,
                metrics=self._metrics,
                interval_s=self._settings.collectors.heartbeat_interval_s,
                is_leading=self._leadership.is_leading,
                record_event=self._job_events.record,
                on_change=self._wakeup.set,
            )
        self._captures = CaptureController(
            queue=self._queue,
            cache=self._cache,
            captures=self._capture_cache,
            config=self._settings.collectors.config,
            tokens=self._tokens,
            metrics=self._metrics,
            is_leading=self._leadership.is_leading,
            wakeup=self._capture_wakeup,
            hangs=self._hangs,
            events=self._job_events,
        )

    def _answer(self) -> None:
        """What answers requests."""
        settings, cache = self._settings, self._cache
        self._endpoints = Endpoints(
            self._leader,
            self._fence,
            self._informers,
            cache,
            self._job_metrics,
            self._metrics,
            self._queue.refused,
        )
        self._server = OperatorServer(self._endpoints.callbacks())
        self._visibility = None
        if self._review_api is not None:
            recorded = RecordedUsage if self._usage is None else self._usage.recorded
            source = StateSource(
                cache, self._leader, settings.identity, self._informers.unsynced, self._fence, recorded
            )
            key = SharedKey(self._review_api, settings.namespace, self._key_name)
            curves = CurveReader(cache, CollectorTokens(self._review_api, settings.collectors.config, key))
            self._visibility = VisibilityServer(
                settings.visibility, self._api, self._review_api, source.state, curves.read
            )

    # ---- their life

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises OSError where an address is in use, and ComponentExited where a watch or
        component ended: the process exits, so that another replica takes over instead of leading on stale state."""
        await self._server.start(self._settings.addresses)
        parts, election = self._parts(), self._fence.election
        self._informers.start()
        tasks = [
            asyncio.create_task(supervise(name, part, self._count_failure, Backoff(1.0, 60.0, reset_after_s=300.0)))
            for name, part in parts.items()
        ]
        ends = [asyncio.create_task(event.wait()) for event in (stop, self._informers.failed)]
        try:
            await asyncio.wait([*ends, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise ComponentExited(self._informers.failure() or f"{exited_components(tasks, list(parts))} ended")
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._informers.stop()
            if election is not None:
                await election.release()
            await self._server.stop()

    def dump_snapshot(self) -> None:
        """Write the newest snapshot to a file for `muster replay`."""
        self._endpoints.dump_snapshot(self._settings.snapshot_dir)

    def _parts(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What runs, by name."""
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "lead": self._leadership.run,
            "events": self._events.run,
            "captures": self._captures.run,
            "dry-runs": lambda: self._dry_runs.refresh_periodically(self._cache.jobs.refresh_dry_runs),
            "device-classes": lambda: poll_device_classes(self._api, self._cache.on_device_classes),
        }
        if self._heartbeat_poller is not None:
            parts["collectors"] = self._heartbeat_poller.run
        if self._usage is not None:
            parts["usage"] = self._usage.run
        if self._visibility is not None:
            parts["visibility"] = self._visibility.run
        if self._fence.election is not None:
            parts["lease"] = self._fence.election.run
        return parts

    def _count_failure(self, component: str) -> None:
        self._metrics.component_failures.labels(component).inc()

    def _forget(self) -> None:
        """Another operator may have led: our unanswered writes, and what was read of its Secrets, are obsolete."""
        self._uncertain_writes.clear()
        self._signer.clear()
        if self._tokens is not None:
            self._tokens.clear()

    def _on_term_begins(self) -> None:
        self._events.clear()
        self._usage_wakeup.set()
