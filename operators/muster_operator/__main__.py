"""Entry point `python -m muster_operator`: builds the components and runs them until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from muster.backoff import Backoff
from muster.engine import encode_snapshot, reduce_gc_frequency
from muster.errors import ClusterError, MusterError
from muster.kube.async_client import ApiRateLimits, AsyncKubeClient
from muster.kube.config import ClientConfig, KubeContext, load_config, load_in_cluster_config
from muster.kube.lease import Fence, LeaderElector, LeaseCandidate
from muster.kube.outages import Outages
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
from muster_operator.events import EventRecorder, JobEvents
from muster_operator.hang_sentences import HangSentences
from muster_operator.informers import InformerSet
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.job_status import TraceStatusTracker
from muster_operator.leader import Leader
from muster_operator.logs import log_to_stderr
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.pod_builder.pods import PodConfig
from muster_operator.runners.create_pods.pod_control import PodControl
from muster_operator.runners.create_pods.pod_groups import PodGroups
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.server import OperatorServer, ServerCallbacks
from muster_operator.settings import Settings, parse_flags
from muster_operator.shared_key import SharedKey
from muster_operator.usage.config_maps import ConfigMapNames
from muster_operator.usage.recorder import UsageRecorder
from muster_operator.visibility.server import VisibilityServer
from muster_operator.visibility.state_source import StateSource
from muster_operator.writes.queue import WriteQueue
from muster_operator.writes.uncertain import UncertainWrites
from muster_operator.writes.writer import JobWriter

_LOG = logging.getLogger("muster.operator")
_REVIEW_RATE_LIMITS = ApiRateLimits(in_flight=16, per_s=200.0, burst=400)
_LEASE_RATE_LIMITS = ApiRateLimits(in_flight=2, per_s=20.0, burst=20)


class ComponentExited(MusterError):
    """A component that the operator cannot run without has ended."""


class Operator:
    """All components of the operator."""

    def __init__(
        self,
        settings: Settings,
        api: AsyncKubeClient,
        fence: Fence,
        metrics: OperatorMetrics,
        review_api: AsyncKubeClient | None = None,
    ) -> None:
        self._settings, self._api = settings, api
        self._fence = fence
        self._election = fence.election
        self._metrics = metrics
        collectors, namespace = settings.collectors, settings.namespace
        pod_config = PodConfig(settings.priority_class, collectors.config)
        template_reader = PodTemplateReader(api, TemplateCache())
        wakeup, self._usage_wakeup = asyncio.Event(), asyncio.Event()
        key_name = f"{settings.lease_name}-collector-key"
        self._signer = PodSigner(SharedKey(api, namespace, key_name))
        self._dry_runs = DryRuns(api, pod_config, template_reader, settings.dry_run_refresh_s)
        self._cache = cache = ClusterCache(
            self._dry_runs,
            wakeup.set,
            collectors=collectors,
            templates=template_reader.templates,
            most_template_bytes=settings.template_bytes,
            deleted_usage=DeletedUsage(time.time, self._usage_wakeup.set),
            pod_security=settings.pod_security,
            charged_request=self._signer.charged_request,
        )
        capture_wakeup = asyncio.Event()
        captures = CaptureCache(capture_wakeup.set)
        self._informers = InformerSet(api, cache, captures)
        self._job_metrics = JobMetrics(metrics, cache.jobs.visible, cache.queues.all, time.time)
        self._tokens = CollectorTokens(api, collectors.config, self._signer.key) if collectors.config.image else None
        self._uncertain_writes = UncertainWrites(api, cache, wakeup.set)
        queue = WriteQueue(api, cache, self._uncertain_writes)
        self._refused_statuses = queue.refused
        self._events = EventRecorder(api, queue.must_defer_events, metrics.dropped_events.inc)
        job_events = JobEvents(cache, self._events, settings.identity)
        pod_groups = None
        if settings.pod_groups:
            pod_groups = PodGroups(api, cache.pods, job_events.record, metrics.gangs_without_pod_group.inc)
        pods = PodControl(
            api,
            cache,
            queue,
            self._dry_runs,
            self._signer,
            pod_config,
            job_events.record,
            self._tokens,
            pod_groups,
        )
        traces = TraceStatusTracker(cache, collectors.config)
        self._usage = None
        if settings.usage_retention_days:
            names = ConfigMapNames(namespace, settings.lease_name)
            self._usage = UsageRecorder(
                queue=queue,
                cache=cache,
                names=names,
                retention_days=settings.usage_retention_days,
                term=self._term_id,
                reads_as_standby=review_api is not None,
                wakeup=self._usage_wakeup,
            )
        writer = JobWriter(api, cache, queue, pods, job_events, traces, self._job_metrics, self._usage)
        invalid_objects = InvalidObjectReporter(cache, queue, self._events, settings.identity)
        timeouts = Timeouts(progress_refresh_s=settings.progress_interval_s) if self._tokens else Timeouts()
        hangs = HangSentences(wakeup.set)
        self._leader = Leader(writer, invalid_objects, metrics, fence, wakeup, timeouts, hangs, self._signer.key)
        self._heartbeat_poller = None
        if self._tokens is not None:
            self._heartbeat_poller = HeartbeatPoller(
                cache=cache,
                tokens=self._tokens,
                metrics=metrics,
                interval_s=collectors.heartbeat_interval_s,
                is_leading=lambda: self._leader.term is not None and fence(),
                record_event=job_events.record,
                on_change=wakeup.set,
            )
        self._captures = CaptureController(
            queue=queue,
            cache=cache,
            captures=captures,
            config=collectors.config,
            tokens=self._tokens,
            metrics=metrics,
            is_leading=lambda: self._leader.term is not None and fence(),
            wakeup=capture_wakeup,
            hangs=hangs,
        )
        self._server = OperatorServer(
            ServerCallbacks(
                self._exposition, self._liveness_error, self._readiness_error, self._positions, self._snapshot
            )
        )

        self._visibility = None
        if review_api is not None:
            recorded_usage = RecordedUsage if self._usage is None else self._usage.recorded
            source = StateSource(
                cache, self._leader, settings.identity, self._informers.unsynced, fence, recorded_usage
            )
            key = SharedKey(review_api, namespace, key_name)
            curves = CurveReader(cache, CollectorTokens(review_api, collectors.config, key))
            self._visibility = VisibilityServer(settings.visibility, api, review_api, source.state, curves.read)

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Raises OSError where an address is in use, and ComponentExited where a watch or
        component ended: the process exits, so that another replica takes over instead of leading on stale state."""
        await self._server.start(self._settings.addresses)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "lead": self._run_leader,
            "events": self._events.run,
            "captures": self._captures.run,
            "dry-runs": lambda: self._dry_runs.refresh_periodically(self._cache.jobs.refresh_dry_runs),
        }
        parts["device-classes"] = lambda: poll_device_classes(self._api, self._cache.on_device_classes)
        if self._heartbeat_poller is not None:
            parts["collectors"] = self._heartbeat_poller.run
        if self._usage is not None:
            parts["usage"] = self._usage.run
        if self._visibility is not None:
            parts["visibility"] = self._visibility.run
        if self._election is not None:
            parts["lease"] = self._election.run
        self._informers.start()
        tasks = [
            asyncio.create_task(supervise(name, part, self._count_failure, Backoff(1.0, 60.0, reset_after_s=300.0)))
            for name, part in parts.items()
        ]
        ends = [asyncio.create_task(event.wait()) for event in (stop, self._informers.failed)]
        try:
            await asyncio.wait([*ends, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise ComponentExited(self._informers.failure() or f"{_exited_components(tasks, list(parts))} ended")
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._informers.stop()
            if self._election is not None:
                await self._election.release()
            await self._server.stop()

    def dump_snapshot(self) -> None:
        """Write the newest snapshot to a file for `muster replay`."""
        data = self._snapshot()
        if data is None:
            _LOG.warning("no snapshot: this operator has not completed a scheduling cycle")
            return
        path = self._settings.snapshot_dir / f"muster-snapshot-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
        try:
            path.write_bytes(data)
        except OSError as error:
            _LOG.error("snapshot not written", extra={"file": str(path), "why": str(error)})
            return
        _LOG.info("snapshot written", extra={"file": str(path)})

    async def _run_leader(self) -> None:
        """Wait for the Lease, list everything again, then lead; repeat.

        A leader whose renewal came too late but that was not replaced continues with its cache: no other operator has
        written, and its own unanswered writes are resolved before the next decision.
        """
        listed_for: str | None = None
        while True:
            if self._election is not None:
                await self._election.leading.wait()
                if self._election.acquired != listed_for:
                    listed_for = self._election.acquired
                    self._uncertain_writes.clear()
                    self._signer.clear()
                    if self._tokens is not None:
                        self._tokens.clear()
                    self._informers.start()  # the cache may lack the last writes of the previous holder
            await self._informers.wait_until_synced()
            if self._election is not None and self._election.acquired != listed_for:
                continue  # another operator led while we listed
            self._fence.enter(listed_for)
            self._events.clear()
            self._usage_wakeup.set()
            await self._leader.run_term()
            self._job_metrics.reset()
            if self._election is not None:
                self._election.refresh()  # otherwise the loop would try to lead until the next renewal ends
            await asyncio.sleep(0.1)

    def _count_failure(self, component: str) -> None:
        self._metrics.component_failures.labels(component).inc()

    def _term_id(self) -> str | None:
        """The id of the term in which this operator leads; None while it does not."""
        term = self._leader.term
        return None if term is None or not self._fence() else term.id

    # ---- HTTP endpoints

    def _liveness_error(self) -> str:
        return self._informers.failure()

    def _readiness_error(self) -> str:
        missing = self._informers.unsynced()
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def _positions(self, namespace: str | None) -> Iterable[dict[str, Any]]:
        term = self._leader.term
        waits = {} if term is None or term.last_cycle is None else term.last_cycle.waits
        for uid, wait in waits.items():
            known = self._cache.jobs.get(uid)
            if known is not None and namespace in (None, known.namespace):
                yield {
                    "namespace": known.namespace,
                    "name": known.job.metadata.name,
                    "queue": known.job.spec.queue,
                    "reason": wait.reason,
                    "message": wait.message,
                    "position": wait.position,
                    "estimatedStart": wait.estimated_start,
                }

    def _snapshot(self) -> bytes | None:
        term = self._leader.term
        return None if term is None or term.last_cycle is None else encode_snapshot(term.last_cycle.snapshot)

    def _exposition(self) -> bytes:
        leads = self._fence()
        if leads:  # otherwise several operators would count the same jobs
            self._job_metrics.refresh()
        else:
            self._job_metrics.reset()
        self._metrics.set_refused_statuses(self._refused_statuses.counts() if leads else {})
        self._metrics.leading.set(leads and self._leader.term is not None)
        for resource, version in self._informers.resource_versions().items():
            self._metrics.watch_version.labels(resource).set(version)
        return self._metrics.exposition()


async def supervise(
    name: str, component: Callable[[], Awaitable[None]], on_failure: Callable[[str], None], backoff: Backoff
) -> None:
    """Run a component until cancelled, with restarts. `on_failure` is called on each failure, after it was logged.

    Its input is written by users. If one object could end the process it would end the next leader as well, and no job
    would start.
    """
    while True:
        try:
            await component()
        except Exception:
            pause_s = backoff.fail(time.monotonic())
            _LOG.exception("component failed", extra={"component": name, "again_in_s": pause_s})
            on_failure(name)
            await asyncio.sleep(pause_s)


def _exited_components(tasks: Sequence[asyncio.Task[None]], names: Sequence[str]) -> str:
    """Names of the components that ended."""
    return ", ".join(name for task, name in zip(tasks, names, strict=True) if task.done())


async def run_operator(settings: Settings, config: ClientConfig) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    metrics, stop = OperatorMetrics(), asyncio.Event()
    async with AsyncExitStack() as stack:
        election, outages = None, Outages()
        if settings.lease_times is not None:
            lease_api = await stack.enter_async_context(
                AsyncKubeClient(config, _LEASE_RATE_LIMITS, count=metrics.count_call, outages=outages)
            )
            candidate = LeaseCandidate(settings.identity, settings.lease_times)
            election = LeaderElector(lease_api, settings.namespace, settings.lease_name, candidate)
        fence = Fence(election)
        api = await stack.enter_async_context(
            AsyncKubeClient(
                config,
                settings.limits,
                may_write=lambda: fence() and outages.is_synced(),
                count=metrics.count_call,
                outages=outages,
            )
        )
        review_api = None
        if settings.visibility.address:
            review_api = await stack.enter_async_context(
                AsyncKubeClient(config, _REVIEW_RATE_LIMITS, count=metrics.count_call)
            )
        operator = Operator(settings, api, fence, metrics, review_api)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, operator.dump_snapshot)
        await operator.run(stop)


def main(argv: list[str]) -> int:
    """Run the operator and return its exit code."""
    settings = parse_flags(argv)
    log_to_stderr(settings.log_level)
    reduce_gc_frequency()
    try:
        config = (
            load_in_cluster_config()
            if settings.kubeconfig is None
            else load_config(KubeContext(settings.kubeconfig, settings.context))
        )
        _LOG.info("operator starts", extra={"server": config.server, "identity": settings.identity})
        uvloop.run(run_operator(settings, config))  # uses a sixth less CPU than asyncio's own event loop
    except (MusterError, ClusterError, OSError) as error:
        _LOG.error("operator ends", extra={"why": str(error)})
        return 1
    except (Exception, asyncio.CancelledError) as error:  # a bug: the last log line names it
        _LOG.error("operator ends", extra={"why": f"{type(error).__name__}: {error}"}, exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
