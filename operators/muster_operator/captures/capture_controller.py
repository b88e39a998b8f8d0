"""Carries out TraceCaptures: agrees with the ranks through the collectors of their pods, and writes the status.

A proposal is written into the status before any rank sees it. So an operator that takes over knows it, and repeats it
instead of making another one. A capture whose status cannot be written is tried again, after a rejection with backoff.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec

from muster.api import spec
from muster.api.spec import FINISHED_CAPTURE_PHASES, TraceCapture, TraceCaptureStatus
from muster.capture.agreement import CaptureTarget, advance, cancel_request, repeat_request
from muster.capture.describe import HungPod
from muster.capture.exchange import CaptureExchange
from muster.capture.protocol import CaptureObservation, CaptureRequest
from muster.capture.stacks import advance_stacks, with_comparison
from muster.capture.status_changes import MAX_RANKS_BYTES, finished, ranks_within
from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.kinds.trainingjob.stalls import RANKS_STALLED, describe_stall
from muster.kube.resources import TRACE_CAPTURES
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.status_patch import changed_fields
from muster_operator.captures.capture_cache import CaptureCache
from muster_operator.collectors.capture_client import CollectorAnswers, exchange_all
from muster_operator.collectors.heartbeat_client import HeartbeatTarget
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.events import JobEvents
from muster_operator.hang_sentences import HangSentences
from muster_operator.metrics import OperatorMetrics
from muster_operator.pod_builder.collector import CollectorSidecarConfig, collector_port, run_location
from muster_operator.pod_builder.run_folder import has_durable_checkpoints
from muster_operator.writes.queue import WriteQueue

_LOG = logging.getLogger("muster.operator")
LEAD_S = 3.0  # from the observation of a step until all ranks have the proposal
MAX_ACTIVE_PER_NAMESPACE = 8
_IDLE_INTERVAL_S = 1.0
_BYTES_PER_S = 8 << 20
"""Of answers of the collectors of a namespace, on average: what users' programs send costs CPU time to read."""
_THREADS = 2 * MAX_ACTIVE_PER_NAMESPACE  # so that the silent collectors of one namespace do not take all
NO_COLLECTOR = (
    "has no collector, through which traces are requested; set collector.image and collector.allJobs in the values of "
    "the chart, or spec.trace in the job, and restart the job"
)


@dataclass(slots=True)
class CaptureController:
    """Carries out captures while `is_leading`; `wakeup` is set when there may be something to do."""

    queue: WriteQueue
    cache: ClusterCache
    captures: CaptureCache
    config: CollectorSidecarConfig
    tokens: CollectorTokens | None
    metrics: OperatorMetrics
    is_leading: Callable[[], bool]
    wakeup: asyncio.Event
    hangs: HangSentences
    events: JobEvents
    # Not the event loop's executor: collectors that do not answer would delay scheduling.
    executor: Executor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "captures"))
    exchange: Callable[[Sequence[HeartbeatTarget], CaptureExchange], CollectorAnswers] = exchange_all
    active_interval_s: float = 0.5
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # by job, at most one each
    _withdrawn: list[TraceCapture] = field(default_factory=list)  # deleted, and not yet withdrawn from their ranks
    # By namespace, since their answers are large; a lock exists while it is used.
    _stacks_turn: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    _not_before: dict[str, float] = field(default_factory=dict)  # monotonic; of the next observation, by namespace

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._run_rounds()
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _run_rounds(self) -> None:
        while True:
            self.wakeup.clear()
            active = False
            if self.is_leading():
                try:
                    if self.tokens is not None:
                        await self.tokens.load()
                    active = await self._reconcile_all()
                except ClusterError as error:  # of the key
                    _LOG.warning("captures wait", extra={"why": str(error)})
            else:
                self.captures.take_withdrawn()
                self._withdrawn.clear()
                self.events.stalled.clear()
            if active:
                await asyncio.sleep(self.active_interval_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_INTERVAL_S):  # this operator may lead by then
                    await self.wakeup.wait()

    async def _reconcile_all(self) -> bool:
        """One round over all captures; whether one is active. Waits for no collector: a job whose collectors are slow
        is left out until its task has ended."""
        self._withdrawn += self.captures.take_withdrawn()
        self._ask_stalled()
        captures = self.captures.all()
        if not (self._withdrawn or captures):
            return False
        jobs = {known.key: known for known in self.cache.jobs.all()}
        self._withdrawn = [
            one for one in self._withdrawn if not self._start(one, self._withdraw, jobs.get(_job_key(one)))
        ]
        for capture in captures:
            if capture.status.phase in FINISHED_CAPTURE_PHASES:
                await self._isolated(capture, self._delete_expired(capture))
        chosen = choose_active(captures)
        for capture in chosen:
            self._start(capture, self._reconcile, jobs.get(_job_key(capture)))
        return bool(chosen or self._withdrawn)

    def _ask_stalled(self) -> None:
        """Begin to ask the ranks of jobs that have made no step for long; nothing of it is stored."""
        for uid in list(self.events.stalled):
            known = self.cache.jobs.get(uid)
            if known is None:
                self.events.stalled.discard(uid)
                continue
            meta = spec.ObjectMeta(
                name=f"{known.name.name}-no-step", namespace=known.name.namespace, uid=f"no-step-{uuid4()}"
            )
            capture = TraceCapture(metadata=meta, spec=spec.TraceCaptureSpec(job=known.name.name, kind="Stacks"))
            if self._start(capture, self._describe_stalled, known):
                self.events.stalled.discard(uid)

    async def _describe_stalled(self, capture: TraceCapture, known: CachedJob | None) -> None:
        """Ask the ranks where they are, and record the Event."""
        uid = "" if known is None else known.uid
        while (known := self.cache.jobs.get(uid)) is not None and not job_problem(capture, known):
            missing, targets = self._targets(known)
            if missing:  # the Event before it says how to see where they are
                return
            namespace = known.name.namespace
            async with self._stacks_turn.setdefault(namespace, asyncio.Lock()):
                await asyncio.sleep(max(0.0, self._not_before.get(namespace, 0.0) - time.monotonic()))
                status = await self._collect_stacks(capture, known, targets)
            if status.phase in FINISHED_CAPTURE_PHASES:
                message = describe_stall(known.job.status, status.message if status.phase == "Succeeded" else "")
                if message:
                    self.events.record(RecordEvent(uid, "Warning", RANKS_STALLED, message))
                return
            capture = capture.model_copy(update={"status": status})
            await asyncio.sleep(self.active_interval_s)

    def _start(
        self,
        capture: TraceCapture,
        action: Callable[[TraceCapture, CachedJob | None], Awaitable[None]],
        known: CachedJob | None,
    ) -> bool:
        """Begin a task, unless one of the same job runs; whether it was begun."""
        key = _job_key(capture)
        if key in self._tasks:
            return False
        self._tasks[key] = task = asyncio.create_task(self._isolated(capture, action(capture, known)))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return True

    async def _isolated(self, capture: TraceCapture, action: Awaitable[None]) -> None:
        """One capture must not affect the others."""
        name = f"{capture.metadata.namespace}/{capture.metadata.name}"
        try:
            await action
        except ClusterError as error:
            _LOG.warning("capture is tried again", extra={"capture": name, "why": str(error)})
        except Exception:
            _LOG.exception("capture failed", extra={"capture": name})
            self.metrics.component_failures.labels("captures").inc()

    async def _reconcile(self, capture: TraceCapture, known: CachedJob | None) -> None:
        """Observe, decide, write the status, then send what follows from it."""
        if time.monotonic() < self._not_before.get(capture.metadata.namespace or "default", 0.0):
            return
        target = CaptureTarget(capture.metadata.uid, capture.spec, LEAD_S)
        problem = job_problem(capture, known)
        targets: list[HeartbeatTarget] = []
        seen = CaptureObservation()
        if known is not None and (not problem or capture.status.agreed_at is not None):
            missing, targets = self._targets(known)
            if missing and not capture.status.proposal:
                failed = finished(capture.status, "Failed", "NoCollector", f"pod {missing} {NO_COLLECTOR}", time.time())
                await self._write(capture, failed)
                return
            if capture.spec.kind == "Stacks":
                turn = self._stacks_turn.setdefault(known.name.namespace, asyncio.Lock())
                async with turn:
                    await self._write(capture, await self._collect_stacks(capture, known, targets))
                return
            seen = await self._exchange(targets, target, repeat_request(target, capture.status))
        progress = advance(target, capture.status, seen, problem, time.time())
        status = progress.status
        if known is not None and status.proposal and not status.job_uid:
            location = run_location(known.job, self.config)
            status = status.model_copy(update={"job_uid": known.uid, "location": location})
        request = progress.request
        if request is not None and request.cancelled:  # first, since nothing is sent about a finished capture
            await self._exchange(targets, target, request)
            request = None
        if status != capture.status and not await self._write(capture, status):
            return
        if request is not None and request != repeat_request(target, capture.status):
            await self._exchange(targets, target, request)

    async def _collect_stacks(
        self, capture: TraceCapture, known: CachedJob, targets: list[HeartbeatTarget]
    ) -> TraceCaptureStatus:
        """The next status of a capture of stacks; the request is repeated, as for steps."""
        found = CollectorAnswers(CaptureObservation())
        if capture.status.proposal and targets:
            wanted = CaptureExchange(id=capture.metadata.uid, stacks_of=capture.status.attempt)
            found = await self._ask(targets, wanted)
        progress = advance_stacks(capture.status, found.seen, known.job.status.attempt, time.time())
        status = progress.status
        if progress.is_complete:
            missing = msgspec.json.encode(HungPod("", ranks=progress.missing))
            sentence = await self.hangs.describe(known.name.namespace, [*found.stacks, missing])
            status = with_comparison(status, sentence, time.time())
        return status.model_copy(update={"job_uid": known.uid, "location": run_location(known.job, self.config)})

    async def _withdraw(self, capture: TraceCapture, known: CachedJob | None) -> None:
        request = cancel_request(CaptureTarget(capture.metadata.uid, capture.spec, LEAD_S), capture.status)
        if request is not None and known is not None and known.uid == capture.status.job_uid:
            _, targets = self._targets(known)
            await self._exchange(targets, CaptureTarget(capture.metadata.uid, capture.spec, LEAD_S), request)

    async def _exchange(
        self, targets: list[HeartbeatTarget], target: CaptureTarget, request: CaptureRequest | None
    ) -> CaptureObservation:
        if not targets:
            return CaptureObservation()
        return (await self._ask(targets, CaptureExchange(id=target.id, request=request))).seen

    async def _ask(self, targets: list[HeartbeatTarget], wanted: CaptureExchange) -> CollectorAnswers:
        """The answers of the collectors of a job. The more they send, the longer its namespace waits for the next."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self.executor, self.exchange, targets, wanted)
        now = time.monotonic()
        self._not_before = {name: at for name, at in self._not_before.items() if at > now}
        self._not_before[targets[0].namespace] = now + found.size / _BYTES_PER_S
        return found

    def _targets(self, known: CachedJob) -> tuple[str, list[HeartbeatTarget]]:
        """A running pod without a collector ("": none), and the collectors of the running pods. Raises ClusterError
        while the key of the tokens is not loaded."""
        if self.tokens is not None and self.tokens.key.loaded is None:  # cleared when a term begins
            raise ClusterError("the key of collector tokens is not loaded")
        targets: list[HeartbeatTarget] = []
        roles = {role.name: role for role in known.job.spec.roles}
        for view in self.cache.pods.views().get(known.uid, ()):
            pod = self.cache.pods.get(known.uid, view.name)
            if pod is None or view.phase != "Running" or view.role not in roles:
                continue
            if self.cache.pods.is_early(view):  # of an attempt that has not begun: another client created it
                continue
            if not pod.has_collector or self.tokens is None:
                return pod.name, []
            if pod.ip:
                role = roles[view.role]
                on_host = bool(role.template.spec.host_network)
                port = collector_port(known.uid, view.role, view.index, on_host_network=on_host)
                token = self.tokens.token(known.uid)
                durable, namespace = has_durable_checkpoints(known.job.spec, role), known.name.namespace
                targets.append(HeartbeatTarget(known.uid, pod.name, pod.ip, port, token, durable, namespace, view.node))
        return "", targets

    async def _write(self, capture: TraceCapture, status: TraceCaptureStatus) -> bool:
        """Write the status of this version of the object; whether it was written."""
        meta = capture.metadata
        ranks = ranks_within(status.ranks, MAX_RANKS_BYTES)
        status = status.model_copy(update={"observed_generation": meta.generation, "ranks": ranks})
        if status == capture.status:
            return True
        patch = {
            "metadata": {"resourceVersion": meta.resource_version, "uid": meta.uid},
            "status": changed_fields(capture.status, status),
        }
        path = TRACE_CAPTURES.path(meta.namespace, meta.name, "status")
        written = await self.queue.patch(path, msgspec.json.encode(patch))
        if written is None:
            return False
        self.captures.on_written(capture, status, written.version)
        return True

    async def _delete_expired(self, capture: TraceCapture) -> None:
        """Delete a finished capture after its TTL."""
        meta, finished_at = capture.metadata, capture.status.finished_at
        if finished_at is None or time.time() < finished_at + capture.spec.ttl_seconds_after_finished:
            return
        options = {"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}}
        await self.queue.delete(TRACE_CAPTURES.path(meta.namespace, meta.name), msgspec.json.encode(options))


def choose_active(captures: Iterable[TraceCapture]) -> list[TraceCapture]:
    """The captures to carry out now: the oldest unfinished one of each job, at most `MAX_ACTIVE_PER_NAMESPACE` of a
    namespace. Those that have begun come first."""
    unfinished = [one for one in captures if one.status.phase not in FINISHED_CAPTURE_PHASES]
    chosen: list[TraceCapture] = []
    jobs: set[str] = set()
    count: Counter[str] = Counter()
    for capture in sorted(unfinished, key=lambda one: one.status.proposal == 0):
        namespace = capture.metadata.namespace or "default"
        if _job_key(capture) in jobs or count[namespace] >= MAX_ACTIVE_PER_NAMESPACE:
            continue
        jobs.add(_job_key(capture))
        count[namespace] += 1
        chosen.append(capture)
    return chosen


def job_problem(capture: TraceCapture, known: CachedJob | None) -> str:
    """Why the job cannot be profiled; empty if it runs."""
    if known is None:
        return f"job {capture.spec.job} does not exist"
    if capture.status.job_uid and capture.status.job_uid != known.uid:
        return f"job {capture.spec.job} was deleted, and another one has its name"
    phase = known.job.status.phase
    return "" if phase == "Running" else f"the job is {phase}, not Running"


def _job_key(capture: TraceCapture) -> str:
    return f"{capture.metadata.namespace or 'default'}/{capture.spec.job}"
