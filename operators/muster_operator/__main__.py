"""`python -m muster_operator`: wire the parts, run until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from muster.engine import dump
from muster.errors import ClusterError, MusterError
from muster_operator.accounts import Accounts
from muster_operator.dryrun import DryRuns
from muster_operator.kube.api import Api, Limits
from muster_operator.kube.connect import Endpoint, connect
from muster_operator.kube.lease import Claim, Election
from muster_operator.logs import log_to_stderr
from muster_operator.manifests.pods import PodChoices
from muster_operator.metrics import Metrics
from muster_operator.outbox import Outbox
from muster_operator.run import Leader
from muster_operator.serve import Answers, Server
from muster_operator.settings import Settings, parse
from muster_operator.sight.world import Sight
from muster_operator.watching import Watching
from muster_operator.writer import Writer

_LOG = logging.getLogger("muster.operator")
_LEASE_CALLS = Limits(in_flight=2, per_s=20.0, burst=20)


class Operator:
    """All parts, wired."""

    def __init__(self, settings: Settings, api: Api, election: Election | None, metrics: Metrics) -> None:
        self._settings = settings
        self._election = election
        choices = PodChoices(settings.priority_class)
        self._dry_runs = DryRuns(api, choices)
        self._sight = Sight(self._dry_runs, self._changed)
        self._dry_runs.learned = self._sight.jobs.learned
        self._watching = Watching(api, self._sight)
        self._metrics = metrics
        self._accounts = Accounts(metrics, self._sight.jobs.shown, time.time)
        self._outbox = Outbox(api, lambda: self._writer.busy > 0 or api.spare() < 1.0, metrics.dropped_events.add)
        self._writer = Writer(api, self._sight, self._dry_runs, self._outbox, choices, settings.identity)
        self._writer.wrote = self._accounts.wrote
        self._leader = Leader(self._sight, self._writer, metrics, self._accounts, self._may_write)
        self._server = Server(Answers(metrics, self._unwell, self._unready, self._positions, self._snapshot))
        metrics.before_scrape = self._before_scrape

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises OSError where an address is taken, and whatever a part dies of."""
        await self._server.start(self._settings.addresses)
        parts: list[Callable[[], Coroutine[Any, Any, None]]] = [
            self._lead, self._outbox.run, lambda: self._dry_runs.ask_again(self._sight.jobs.forget_refusals),
        ]  # fmt: skip
        if self._election is not None:
            parts.append(self._election.run)
        self._watching.start()
        tasks = [asyncio.create_task(part()) for part in parts]
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # raises: no part ends by itself
        finally:
            stopping.cancel()
            for task in tasks:
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
        """Stand by until the Lease is ours, list everything anew, then lead; again and again."""
        while True:
            if self._election is not None:
                await self._election.leading.wait()
                self._watching.start()  # what was seen so far may lack what the last holder wrote
            await self._watching.synced()
            self._outbox.clear()
            await self._leader.lead()
            if self._election is not None and self._may_write():
                continue
            await asyncio.sleep(0.1)

    def _may_write(self) -> bool:
        return self._election is None or self._election.may_write()

    def _changed(self) -> None:
        self._leader.changed.set()

    # ---- what it answers

    def _unwell(self) -> str:
        failure = self._watching.failure()
        return "" if failure is None else f"a watch ended: {failure!r}"

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
        self._accounts.scrape()
        self._metrics.leading.put({(): 1.0 if self._may_write() else 0.0})


async def operate(settings: Settings, endpoint: Endpoint) -> None:
    """Run the operator until SIGTERM or SIGINT."""
    metrics, stop = Metrics(), asyncio.Event()
    async with AsyncExitStack() as stack:
        election = None
        if settings.lease_times is not None:
            lease_api = await stack.enter_async_context(Api(endpoint, _LEASE_CALLS, count=metrics.count_call))
            claim = Claim(settings.identity, settings.lease_times)
            election = Election(lease_api, settings.namespace, settings.lease_name, claim)
        may_write = election.may_write if election is not None else lambda: True
        api = await stack.enter_async_context(
            Api(endpoint, settings.limits, may_write=may_write, count=metrics.count_call)
        )
        operator = Operator(settings, api, election, metrics)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, operator.dump_snapshot)
        await operator.run(stop)


def main(argv: list[str]) -> int:
    """Run; the exit code."""
    settings = parse(argv)
    log_to_stderr(settings.log_level)
    try:
        endpoint = connect(settings.kubeconfig, settings.context)
        _LOG.info("operator starts", extra={"server": endpoint.url, "identity": settings.identity})
        asyncio.run(operate(settings, endpoint))
    except (MusterError, ClusterError, OSError) as error:
        _LOG.error("operator ends", extra={"why": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
