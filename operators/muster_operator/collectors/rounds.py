"""While this operator acts, all collectors are asked in turn, every few seconds: how far is your job?

What they say goes to `sight.beats`; the engine is woken once a sweep, and only if there is news. A collector that does
not answer for long is told of in an Event; its job is left alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from muster.cluster import RecordEvent
from muster.errors import ClusterError
from muster.lifecycle import is_finished
from muster_operator.collectors.asking import Outcome, Target, ask_all
from muster_operator.collectors.tokens import Tokens
from muster_operator.lasting import Pauses
from muster_operator.manifests.collector import collector_port, lead
from muster_operator.manifests.run_folder import keeps_run_folder
from muster_operator.metrics import Metrics
from muster_operator.sight.beats import Said
from muster_operator.sight.endings import MOST_TRACES
from muster_operator.sight.world import Sight

_LOG = logging.getLogger("muster.operator")
_SILENT_S = 120.0  # then somebody is told
_SWEEP_S = 5.0


@dataclass(slots=True)
class Asking:
    """Asks, sweep after sweep, `every_s` from the begin of one to the begin of the next, at least."""

    sight: Sight
    tokens: Tokens
    metrics: Metrics
    every_s: float
    acts: Callable[[], bool]  # whether this operator acts
    tell: Callable[[RecordEvent], None]
    changed: Callable[[], None]
    _silent: dict[str, tuple[str, float]] = field(default_factory=dict)  # by job: its pod, since when
    _told: set[str] = field(default_factory=set)  # of them, those that an Event told of

    async def run(self) -> None:
        """Until cancelled."""
        pauses = Pauses()
        while True:
            began, pause_s = time.monotonic(), 0.0
            try:
                self._forget()
                if self.acts():
                    await self._sweep()
            except ClusterError as error:  # of the key
                _LOG.warning("collectors are not asked", extra={"why": str(error)})
            except Exception:  # a bug that an answer met: the jobs go on unasked meanwhile
                pause_s = pauses.next()
                _LOG.exception("collectors are not asked", extra={"again_in_s": pause_s})
                self.metrics.failures.add(1.0, ("collectors",))
            await asyncio.sleep(max(0.05, pause_s, began + self.every_s - time.monotonic()))

    def _forget(self) -> None:
        """What jobs said that are gone or done; also while another operator acts: last words come all the time."""
        jobs = list(self.sight.jobs.all())
        self.sight.beats.keep_only({known.uid for known in jobs if not is_finished(known.job.status)})
        self.sight.collected.keep_only({known.uid for known in jobs})

    async def _sweep(self) -> None:
        await self.tokens.load()
        targets = sorted(self._targets(), key=lambda target: target.uid in self._silent)  # they cost most time
        outcomes = await asyncio.to_thread(ask_all, targets, max(self.every_s, _SWEEP_S))
        news = [self._take_safely(outcome, time.time()) for outcome in outcomes]
        asked = {target.uid for target in targets}
        for uid in self._silent.keys() - asked:
            self._answered(uid)
        self.metrics.silent_collectors.put({(): float(len(self._silent))})
        if any(news):
            self.changed()

    def _targets(self) -> Iterator[Target]:
        """The pods that speak for jobs, as far as they run and have a collector."""
        for known in self.sight.jobs.all():
            if is_finished(known.job.status):
                continue
            # Also one that is to stop, and of a job that is suspended: it writes a checkpoint in its grace.
            role = lead(known.job.spec)
            pod = self.sight.pods.speaker(known.uid, role.name)
            if pod is None or pod.view is None or not pod.collector or not pod.ip or role.name not in known.templates:
                continue
            if pod.view.phase == "Running":
                on_host = bool(role.template.spec.host_network)
                port = collector_port(known.uid, role.name, 0, on_host_network=on_host)
                durable = keeps_run_folder(role)
                yield Target(known.uid, pod.name, pod.ip, port, self.tokens.token(known.uid), durable)

    def _take_safely(self, outcome: Outcome, now: float) -> bool:
        try:
            return self._take(outcome, now)
        except Exception:  # whatever one says, the others are heard
            _LOG.exception("an answer cannot be taken", extra={"pod": outcome.target.pod})
            self.metrics.failures.add(1.0, ("collectors",))
            return False

    def _take(self, outcome: Outcome, now: float) -> bool:
        """Note what came of it; whether it is news."""
        target, answer = outcome.target, outcome.answer
        if answer is None:
            if self._is_up(target):
                self.metrics.beats.add(1.0, ("silent",))
                self._is_silent(target, outcome.why, now)
            return False
        self.metrics.beats.add(1.0, ("ok",))
        self._answered(target.uid)
        pod = self.sight.pods.of_job(target.uid, target.pod)
        if pod is not None and pod.view is not None and 0 < answer.traces <= MOST_TRACES:
            self.sight.collected.said(target.uid, (pod.view.role, pod.view.index), answer.traces)
        if answer.unreadable:
            _LOG.debug("collector", extra={"pod": target.pod, "why": "; ".join(answer.unreadable)[:500]})
        said = Said(target.pod, answer.now, answer.beat or {}, answer.checkpoint or {}, target.durable)
        return self.sight.beats.heard(target.uid, said, now)

    def _is_up(self, target: Target) -> bool:
        """Whether the pod should still answer by now."""
        pod = self.sight.pods.of_job(target.uid, target.pod)
        return pod is not None and pod.view is not None and pod.view.phase == "Running" and not pod.view.deleting

    def _is_silent(self, target: Target, why: str, now: float) -> None:
        pod, since = self._silent.get(target.uid, (target.pod, now))
        if pod != target.pod:
            since = now
            self._told.discard(target.uid)
        self._silent[target.uid] = target.pod, since
        if now - since >= _SILENT_S and target.uid not in self._told:
            self._told.add(target.uid)
            message = (
                f"the collector of {target.pod} at {target.host} port {target.port} does not answer: {why}; "
                "meanwhile a stall goes unnoticed"
            )
            _LOG.warning("collector is silent", extra={"pod": target.pod, "why": why})
            self.tell(RecordEvent(target.uid, "Warning", "CollectorSilent", message))

    def _answered(self, uid: str) -> None:
        self._silent.pop(uid, None)
        self._told.discard(uid)
