"""Events, sent only when no other write waits: they inform people, and no decision depends on them.

The interval grows with the response time of the API server, and sending pauses while it does not answer. Warnings come
first, with one other Event after every three. Events that are too old or too many are dropped and counted, those of the
namespace with the most first (`pending_events`). An Event that is obsolete before it was sent is dropped
(`PendingEvent.supersedes`), for example Admitted after Completed.

Most jobs start at once and most reasons change soon, so an Event `Pending` is recorded only when a job stays pending
for the same reason for a while, and rarely for the same job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from muster.api import spec
from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.kinds.trainingjob.array_changes import array_event
from muster.kinds.trainingjob.stalls import NO_STEP
from muster.kube.async_client import METADATA_ONLY, ApiError, AsyncKubeClient
from muster.kube.resources import EVENTS, TRAINING_JOBS, Resource
from muster.workload.conditions import ADMITTED, find_condition
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.logs import CYCLE
from muster_operator.pending_events import PendingEvent, PendingEvents

CONTROLLER = "muster.dev/operator"
CYCLE_ANNOTATION = "muster.dev/cycle"
PENDING = "Pending"
_LOG = logging.getLogger("muster.operator")
_MAX_NOTE_BYTES = 1024  # limit of the API server
_SENDERS = 4
_POLL_S = 0.05
_INTERVAL_FACTOR = 9.0  # of the time that the last one took, including the wait for the rate limiter
_MAX_INTERVAL_S = 2.0
_MIN_STABLE_S = 30.0  # that the reason of a pending job must be unchanged
_MIN_REPEAT_S = 600.0  # between Events Pending of one job
_MAX_ENTRIES = 50_000
_SUPERSEDES = {"Completed": "Admitted", "Admitted": PENDING}
"""An Event reason, and the reason of the pending Event that it makes obsolete."""


def event_manifest(
    meta: spec.ObjectMeta,
    event: RecordEvent,
    at: float,
    instance: str,
    resource: Resource = TRAINING_JOBS,
    cycle: str | None = None,
) -> dict[str, Any]:
    """Manifest of the Event; `instance` names the reporting operator, `cycle` the scheduling cycle. The API server
    completes its name. Events of cluster-scoped objects are in `default`."""
    annotations = {} if cycle is None else {"annotations": {CYCLE_ANNOTATION: cycle}}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{meta.name}-", "namespace": meta.namespace or "default", **annotations},
        "eventTime": datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": event.reason,
        "reason": event.reason,
        "type": event.type,
        "note": event.message.encode()[:_MAX_NOTE_BYTES].decode(errors="ignore"),
        "regarding": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            **({"namespace": meta.namespace} if meta.namespace else {}),
        },
    }


class EventRecorder:
    """Queue and sender of Events. `busy`: whether other writes are in progress."""

    def __init__(self, api: AsyncKubeClient, busy: Callable[[], bool], on_drop: Callable[[], None]) -> None:
        self._api = api
        self._busy = busy
        self._on_drop = on_drop
        self._events = PendingEvents(on_drop)
        self._not_empty = asyncio.Event()

    def enqueue(self, event: PendingEvent) -> None:
        self._events.add(event)
        self._not_empty.set()

    def clear(self) -> None:
        """Drop all pending Events: another operator led meanwhile."""
        self._events.clear()

    def pending(self) -> list[PendingEvent]:
        """Events not sent yet: warnings, then others, oldest first."""
        return self._events.all()

    def __len__(self) -> int:
        return len(self._events)

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as senders:
            for _ in range(_SENDERS):
                senders.create_task(self._run_sender())

    async def _run_sender(self) -> None:
        while True:
            while not len(self):
                self._not_empty.clear()
                await self._not_empty.wait()
            while self._busy():  # noqa: ASYNC110 - what it waits for is a rate, not an event
                await asyncio.sleep(_POLL_S)
            if (following := self._events.take()) is None:
                continue
            began, pause_s = time.monotonic(), 0.0
            try:
                await self._post(following[1])
            except ClusterError as error:  # no answer, or no right to write at present
                self._events.put_back(*following)
                pause_s = _MAX_INTERVAL_S
                _LOG.debug("event not recorded; retrying", extra={"why": str(error)})
            await asyncio.sleep(pause_s or min(_MAX_INTERVAL_S, _INTERVAL_FACTOR * (time.monotonic() - began)))

    async def _post(self, event: PendingEvent) -> None:
        """Send it, or drop it if rejected. Raises ClusterError where there was no answer."""
        try:
            body = msgspec.json.encode(event.manifest)
            await self._api.post(EVENTS.path(event.namespace), body, accept=METADATA_ONLY)
        except Exception as error:  # one bad Event must not stop the others
            if isinstance(error, ClusterError) and not isinstance(error, ApiError):
                raise
            self._on_drop()
            _LOG.log(
                logging.DEBUG if isinstance(error, ClusterError) else logging.ERROR,
                "event not recorded",
                extra={"why": str(error) or type(error).__name__},
            )


@dataclass(slots=True)
class JobEvents:
    """Queues Events of jobs: those that the engine decides, and Pending. `instance` names the reporting operator.

    Jobs that have made no step for long are added to `stalled`.

    In each term (`begin_term`) it tracks since when the reasons of pending jobs are unchanged (`on_status_written`).
    """

    cache: ClusterCache
    recorder: EventRecorder
    instance: str
    clock: Callable[[], float] = time.monotonic
    stalled: set[str] = field(default_factory=set)  # uids; the captures take them from it
    # reason and since when, by uid; oldest first
    _since: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _recorded: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)  # reason and when, by uid

    def record(self, event: RecordEvent) -> None:
        """Queue an Event of a job. Those of an index are its array's, and warnings only."""
        about = array_event(event)
        known = None if about is None else self.cache.workload(about.job_uid)
        if about is not None and known is not None:
            now, cycle = time.time(), CYCLE.get()
            manifest = event_manifest(known.metadata, about, now, self.instance, known.resource, cycle)
            key = f"{event.job_uid} {event.reason}"
            supersedes = f"{event.job_uid} {_SUPERSEDES[event.reason]}" if event.reason in _SUPERSEDES else ""
            self.recorder.enqueue(PendingEvent(known.namespace, manifest, key, supersedes))
            if event.reason == NO_STEP:
                self.stalled.add(event.job_uid)

    def record_about(self, resource: Resource, meta: spec.ObjectMeta, event: RecordEvent, cycle: str | None) -> None:
        """Queue an Event of an object other than a job."""
        manifest = event_manifest(meta, event, time.time(), self.instance, resource, cycle)
        self.recorder.enqueue(PendingEvent(meta.namespace or "default", manifest))

    def begin_term(self) -> None:
        """It is unknown since when the present reasons exist."""
        self._since.clear()

    def on_status_written(self, uid: str, before: spec.QueueingStatus, status: spec.QueueingStatus) -> None:
        if status.phase != PENDING:
            self._since.pop(uid, None)
        elif (before.phase, before.reason) != (status.phase, status.reason):
            self._since[uid] = status.reason, self.clock()
            self._since.move_to_end(uid)

    def record_pending_reasons(self) -> None:
        """Record the reasons that have been unchanged for long enough."""
        now = self.clock()
        while self._since and self.due_in_s() <= 0.0:
            uid, (reason, _) = self._since.popitem(last=False)
            self._record_reason(uid, reason, now)

    def due_in_s(self) -> float:
        """Seconds until the next reason is due, 0 if one is; infinity if there is none."""
        since = next((since for _, since in self._since.values()), float("inf"))
        return max(0.0, since + _MIN_STABLE_S - self.clock())

    def _record_reason(self, uid: str, reason: str, now: float) -> None:
        known = self.cache.workload(uid)
        if known is None or (known.status.phase, known.status.reason) != (PENDING, reason):
            return
        last = self._recorded.get(uid)
        if last is not None and (last[0] == reason or now < last[1] + _MIN_REPEAT_S):
            return
        self._recorded[uid] = (reason, now)
        self._recorded.move_to_end(uid)
        if len(self._recorded) > _MAX_ENTRIES:
            self._recorded.popitem(last=False)  # costs only another Event
        condition = find_condition(known.status, ADMITTED)
        message = "" if condition is None else condition.message
        self.record(RecordEvent(uid, "Normal", PENDING, f"{reason}: {message}"))
