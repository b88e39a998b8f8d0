"""`python -m muster_operator`: wire the parts, run until told to stop."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from muster import garbage
from muster.engine import dump
from muster.errors import ClusterError, MusterError
from muster.lifecycle import Bounds
from muster_operator.accounts import Accounts
from muster_operator.collectors.rounds import Asking
from muster_operator.collectors.tokens import Tokens
from muster_operator.documents import TemplateDocuments
from muster_operator.doubts import Doubts
from muster_operator.dryrun import DryRuns
from muster_operator.keys import Key
from muster_operator.kube.api import Api, ApiError, Limits
from muster_operator.kube.connect import Endpoint, connect
from muster_operator.kube.fence import Fence
from muster_operator.kube.lease import Claim, Election
from muster_operator.kube.outages import Outages
from muster_operator.lasting import lasting
from muster_operator.logs import log_to_stderr
from muster_operator.manifests.pods import PodChoices
from muster_operator.metrics import Metrics
from muster_operator.outbox import Outbox
from muster_operator.podgroups import PodGroups
from muster_operator.refusals import FORBIDDEN, concerns_everybody
from muster_operator.run import Leader
from muster_operator.serve import Answers, Server
from muster_operator.settings import Settings, parse
from muster_operator.sight.admission import Seal
from muster_operator.sight.templates import Templates
from muster_operator.sight.world import Sight
from muster_operator.traces import Traces
from muster_operator.watching import Watching
from muster_operator.writer import Writer

_LOG = logging.getLogger("muster.operator")
_KEY_AGAIN_S = 0.5
_KEY_PATIENCE_S = (3.0, 60.0)  # the second where it may be over, or would cost pods that run
_LEASE_CALLS = Limits(in_flight=2, per_s=20.0, burst=20)


class PartEnded(MusterError):
    """Something that the operator cannot go on without has ended."""


class Operator:
    """All parts, wired."""

    def __init__(self, settings: Settings, api: Api, fence: Fence, metrics: Metrics) -> None:
        self._settings = settings
        self._fence = fence
        self._election = fence.election
        collectors = settings.collectors
        choices = PodChoices(settings.priority_class, collectors.choices)
        documents = TemplateDocuments(api, Templates())
        self._dry_runs = DryRuns(api, choices, documents, settings.learn_again_s)
        self._sight = Sight(
            self._dry_runs,
            self._changed,
            collectors=collectors,
            templates=documents.templates,
            most_template_bytes=settings.template_bytes,
        )
        self._dry_runs.learned = self._sight.jobs.learned
        self._watching = Watching(api, self._sight)
        self._metrics = metrics
        self._accounts = Accounts(metrics, self._sight.jobs.shown, time.time)
        self._outbox = Outbox(api, self._busy, metrics.dropped_events.add)
        doubts = Doubts(api, self._sight)
        self._writer = Writer(api, self._sight, self._dry_runs, doubts, self._outbox, choices, settings.identity)
        self._writer.wrote = self._accounts.wrote
        key_name = f"{settings.lease_name}-admission-key"
        self._key = Key(api, settings.namespace, key_name, "the key of admissions that pods tell")
        self._writer.staffing.groups = self._groups = PodGroups(api) if settings.pod_groups else None
        self._leader = Leader(self._sight, self._writer, metrics, self._accounts, fence)
        self._asking = self._ask_collectors(api) if collectors.choices.image else None
        self._server = Server(Answers(metrics, self._unwell, self._unready, self._positions, self._snapshot))
        metrics.before_scrape = self._before_scrape

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises OSError where an address is taken, ClusterError where the cluster lacks what the
        settings ask for, and PartEnded: who does not see the cluster as it is must not lead, and whoever can takes over
        at once."""
        if self._groups is not None:
            await self._groups.check_served()
        await self._server.start(self._settings.addresses)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "lead": self._lead,
            "events": self._outbox.run,
            "dry-runs": lambda: self._dry_runs.ask_again(self._sight.jobs.ask_again),
        }
        if self._asking is not None:
            parts["collectors"] = self._asking.run
        if self._election is not None:
            parts["lease"] = self._election.run
        self._watching.start()
        tasks = [asyncio.create_task(lasting(name, part, self._failed)) for name, part in parts.items()]
        ends = [asyncio.create_task(event.wait()) for event in (stop, self._watching.ended)]
        try:
            await asyncio.wait([*ends, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise PartEnded(self._watching.failure() or f"{_ended(tasks, list(parts))} ended")
        finally:
            for task in (*tasks, *ends):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._watching.stop()
            if self._election is not None:
                await self._election.release()
            await self._server.stop()

    def dump_snapshot(self) -> None:
        """Write the newest snapshot to a file, for `muster replay`."""
        data = self._snapshot()
        if data is None:
            _LOG.warning("no snapshot: nothing was planned here yet")
            return
        path = self._settings.snapshot_dir / f"muster-snapshot-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
        try:
            path.write_bytes(data)
        except OSError as error:
            _LOG.error("snapshot not written", extra={"file": str(path), "why": str(error)})
            return
        _LOG.info("snapshot written", extra={"file": str(path)})

    async def _lead(self) -> None:
        """Stand by until the Lease is ours, list everything anew, then lead; again and again.

        Whoever could not renew in time, but was not replaced either, goes on with what it sees: nobody else wrote, and
        of its own writes those that had no answer are settled before it decides.
        """
        listed_for: str | None = None
        while True:
            if self._election is not None:
                await self._election.leading.wait()
                if self._election.acquired != listed_for:
                    listed_for = self._election.acquired
                    self._writer.doubts.forget()
                    self._writer.seal = None
                    self._key.forget()
                    if self._asking is not None:
                        self._asking.tokens.forget()
                    self._watching.start()  # what was seen so far may lack what the last holder wrote
            await self._watching.synced()
            if self._election is not None and self._election.acquired != listed_for:
                continue  # somebody else led while we listed
            self._fence.enter(listed_for)
            self._outbox.clear()
            if await self._begin_term():
                await self._leader.lead()
                self._accounts.rest()
            if self._election is not None:
                self._election.notice()  # or we would try to lead until the next renewal ends
            await asyncio.sleep(0.1)

    async def _begin_term(self) -> bool:
        """Have the key, so that it is known which pods tell the truth of their admission; whether we still lead.

        Without the right to it, or with one that is none, statuses are written before pods, and no pod is believed.
        Where that would stop pods it takes longer, since an API server that has just started may refuse anything.
        """
        began = time.monotonic()
        while self._fence():
            try:
                await self._key.load()
            except ClusterError as error:
                if time.monotonic() - began >= self._key_patience_s(error):
                    _LOG.warning("admissions are written before pods", extra={"why": str(error)})
                    self._sight.begin(None)
                    return True
                _LOG.warning("not leading yet", extra={"why": str(error)})
                await asyncio.sleep(_KEY_AGAIN_S)
            else:
                assert self._key.loaded is not None
                if self._writer.seal is None:
                    self._writer.seal = Seal(self._key.loaded, secrets.token_urlsafe(6))
                self._sight.begin(self._writer.seal)
                return True
        return False

    def _key_patience_s(self, error: ClusterError) -> float:
        if not isinstance(error, ApiError) or concerns_everybody(error):
            return math.inf
        return _KEY_PATIENCE_S[0 if error.code in FORBIDDEN and not self._sight.is_told() else 1]

    def _ask_collectors(self, api: Api) -> Asking:
        """Collectors are asked, and what they say is decided about and told."""
        settings = self._settings
        key_name = f"{settings.lease_name}-collector-key"
        key = Key(api, settings.namespace, key_name, "the key of collectors")
        tokens = Tokens(api, settings.collectors.choices, key)
        self._writer.staffing.tokens = tokens
        self._leader.bounds = Bounds(progress_news_s=settings.progress_s)
        self._leader.traces = Traces(self._sight, settings.collectors.choices)
        self._writer.tells = self._leader.traces.told
        return Asking(
            sight=self._sight,
            tokens=tokens,
            metrics=self._metrics,
            every_s=settings.collectors.every_s,
            acts=lambda: self._leader.term is not None and self._fence(),
            tell=self._writer.record,
            changed=self._changed,
        )

    def _busy(self) -> bool:
        """Whether Events have to wait."""
        return self._writer.busy > 0 or self._writer.api.spare() < 1.0 or self._leader.rush.presses()

    def _failed(self, part: str) -> None:
        self._metrics.failures.add(1.0, (part,))

    def _changed(self) -> None:
        self._leader.changed.set()

    # ---- what it answers

    def _unwell(self) -> str:
        return self._watching.failure()

    def _unready(self) -> str:
        missing = self._watching.missing()
        return f"not listed yet: {', '.join(missing)}" if missing else ""

    def _positions(self, namespace: str | None) -> Iterable[dict[str, Any]]:
        term = self._leader.term
        waits = {} if term is None or term.last is None else term.last.waits
        for uid, wait in waits.items():
            known = self._sight.jobs.known(uid)
            if known is not None and namespace in (None, known.namespace):
                yield {
                    "namespace": known.namespace,
                    "name": known.job.metadata.name,
                    "queue": known.job.spec.queue,
                    "reason": wait.code,
                    "message": wait.message,
                    "position": wait.position,
                    "estimatedStart": wait.estimated_start,
                }

    def _snapshot(self) -> bytes | None:
        term = self._leader.term
        return None if term is None or term.engine.snapshot is None else dump(term.engine.snapshot)

    def _before_scrape(self) -> None:
        leads = self._fence()
        if leads:  # or several operators would count the same jobs
            self._accounts.scrape()
        else:
            self._accounts.rest()
        self._metrics.leading.put({(): 1.0 if leads and self._leader.term is not None else 0.0})
        self._metrics.watch_version.put({(name,): float(at) for name, at in self._watching.versions().items()})


def _ended(tasks: Sequence[asyncio.Task[None]], names: Sequence[str]) -> str:
    """Which part is not running any more."""
    return ", ".join(name for task, name in zip(tasks, names, strict=True) if task.done())


async def operate(settings: Settings, endpoint: Endpoint) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    metrics, stop = Metrics(), asyncio.Event()
    async with AsyncExitStack() as stack:
        election, outages = None, Outages()
        if settings.lease_times is not None:
            lease_api = await stack.enter_async_context(
                Api(endpoint, _LEASE_CALLS, count=metrics.count_call, outages=outages)
            )
            claim = Claim(settings.identity, settings.lease_times)
            election = Election(lease_api, settings.namespace, settings.lease_name, claim)
        fence = Fence(election)
        api = await stack.enter_async_context(
            Api(
                endpoint,
                settings.limits,
                may_write=lambda: fence() and outages.current(),
                count=metrics.count_call,
                outages=outages,
            )
        )
        operator = Operator(settings, api, fence, metrics)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, operator.dump_snapshot)
        await operator.run(stop)


def main(argv: list[str]) -> int:
    """Run; the exit code."""
    settings = parse(argv)
    log_to_stderr(settings.log_level)
    garbage.seldom()
    try:
        endpoint = connect(settings.kubeconfig, settings.context)
        _LOG.info("operator starts", extra={"server": endpoint.url, "identity": settings.identity})
        uvloop.run(operate(settings, endpoint))  # the same calls cost a sixth less CPU than on asyncio's own loop
    except (MusterError, ClusterError, OSError) as error:
        _LOG.error("operator ends", extra={"why": str(error)})
        return 1
    except (Exception, asyncio.CancelledError) as error:  # a bug: its last line in the log tells where
        _LOG.error("operator ends", extra={"why": f"{type(error).__name__}: {error}"}, exc_info=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
