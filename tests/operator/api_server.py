"""A small API server: it accepts all writes except those that it is set to reject, and records requests."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from aiohttp import web
from tests.operator.caches import new_cache
from tests.operator.objects import LONG_S, job_document, node_seen, read

from muster.engine import Engine
from muster.kube.async_client import ApiRateLimits, AsyncKubeClient
from muster.kube.config import ClientConfig
from muster.kube.objects import RawCustomObject
from muster.workload.timeouts import Timeouts
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.template_bytes import MOST_BYTES
from muster_operator.dry_run import DryRuns, PodTemplateReader
from muster_operator.events import EventRecorder, JobEvents
from muster_operator.hang_sentences import HangSentences
from muster_operator.invalid_objects import InvalidObjectReporter
from muster_operator.job_status import TraceStatusTracker
from muster_operator.leader import Leader, LeaderTerm
from muster_operator.metrics import JobMetrics, OperatorMetrics
from muster_operator.pod_builder.pods import PodConfig
from muster_operator.runners.create_pods.pod_control import PodControl
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.runners.suspended import ObjectControl
from muster_operator.shared_key import SharedKey
from muster_operator.writes.finalizers import IN_USE
from muster_operator.writes.queue import WriteQueue
from muster_operator.writes.uncertain import UncertainWrites
from muster_operator.writes.writer import JobWriter

NOW = "2026-11-21T10:00:00Z"
RUNNER = web.AppKey("runner", web.AppRunner)


@dataclass
class Server:
    """`refuses`: method, pattern of paths and code of rejected requests; `says`, `reason`: the answer. `edited`: newer
    versions by pattern of paths; a write for another version is a conflict."""

    refuses: list[tuple[str, str, int]] = field(default_factory=list)
    says: str = "not now"
    reason: str = "Refused"
    calls: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    version: int = 1000
    edited: dict[str, int] = field(default_factory=dict)
    lost: str = ""  # pattern of requests that are not executed and not answered

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        name = body.get("metadata", {}).get("name", "") if request.method == "POST" else ""
        path = f"{request.path}/{name}" if name else request.path
        self.calls.append(f"{request.method} {path}")
        self.bodies.append(body)
        if self.lost and re.search(self.lost, self.calls[-1]):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        for method, pattern, code in self.refuses:
            if request.method == method and re.search(pattern, path):
                refusal = {"code": code, "reason": self.reason, "message": self.says}
                return web.json_response(refusal, status=code, headers={"Retry-After": "0"})
        if request.method == "GET":
            return web.json_response({"items": []})
        made_for = body.get("metadata", {}).get("resourceVersion")
        if any(re.search(pattern, path) and made_for not in (None, str(at)) for pattern, at in self.edited.items()):
            return web.json_response({"code": 409, "reason": "Conflict", "message": "it changed"}, status=409)
        self.version += 1
        meta = {**body.get("metadata", {}), "resourceVersion": str(self.version), "uid": f"uid-{self.version}"}
        return web.json_response({"metadata": meta, "spec": body.get("spec", {})})

    def count(self, call: str) -> int:
        """Number of calls with this prefix."""
        return sum(one.startswith(call) for one in self.calls)


class Answers(Protocol):
    """Anything that answers as an API server."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The answer to one request."""


Scenario = Callable[[AsyncKubeClient], Awaitable[None]]


async def tried(harness: OperatorHarness, dry_runs: DryRuns) -> DryRunResult | None:
    """Result of a dry run of a job's pods."""
    harness.submit("llama", 5)
    job, answered = harness.cache.jobs.get("uid-llama"), asyncio.Event()
    assert job is not None
    (template,) = job.templates.values()
    dry_runs.request(job, lambda namespace, digest: answered.set())
    async with asyncio.timeout(60):
        await answered.wait()
    return dry_runs.result("team", template)


def serve(server: Answers, scenario: Scenario) -> None:
    """Run the test against the server."""
    asyncio.run(serving(server, scenario))


async def serving(
    server: Answers,
    scenario: Scenario,
    may_write: Callable[[], bool] = lambda: True,
    limits: ApiRateLimits | None = None,
) -> None:
    """The same, in a running event loop."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = app[RUNNER] = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = ClientConfig(f"http://127.0.0.1:{runner.addresses[0][1]}", None, dict)
    try:
        async with AsyncKubeClient(endpoint, limits or ApiRateLimits(), may_write=may_write) as api:
            await scenario(api)
    finally:
        await runner.cleanup()


def new_queue(api: AsyncKubeClient, cache: ClusterCache, clock: Callable[[], float] = time.monotonic) -> WriteQueue:
    """A write queue without a leader."""
    return WriteQueue(api, cache, UncertainWrites(api, cache, lambda: None), clock)


class OperatorHarness:
    """A leader with its cache: two nodes, a queue, a flavor."""

    def __init__(
        self,
        api: AsyncKubeClient,
        most_template_bytes: int = MOST_BYTES,
    ) -> None:
        self.signer = PodSigner(SharedKey(api, "muster-system", "key", b"k" * 32), lambda: self.cache._clock())  # noqa: PLW0108 - it is replaced below
        self.cache: ClusterCache = new_cache(most_template_bytes=most_template_bytes, signatures=self.signer)[0]
        at = datetime.fromisoformat(NOW).timestamp() + 10.0
        self.cache._clock = lambda: at
        self.cache.nodes.on_upsert(node_seen("n1"))
        self.cache.nodes.on_upsert(node_seen("n2", 2))
        quota = {"namespaceSelector": {}, "resources": [{"flavor": "f"}]}
        meta = {"name": "research", "resourceVersion": "3", "finalizers": [IN_USE]}
        self.cache.queues.on_upsert(read(RawCustomObject, {"metadata": meta, "spec": quota}))
        self.cache.flavors.on_upsert(
            read(RawCustomObject, {"metadata": {"name": "f", "resourceVersion": "4"}, "spec": {}})
        )
        self.metrics, pod_config = OperatorMetrics(), PodConfig()
        self.now = 0.0  # the clock of pauses and uncertain writes
        self.dry_runs = DryRuns(api, pod_config, PodTemplateReader(api, self.cache.templates))
        self.wakeup = asyncio.Event()
        self.uncertain = UncertainWrites(api, self.cache, self.wakeup.set, lambda: self.now)
        self.queue = WriteQueue(api, self.cache, self.uncertain, lambda: self.now)
        self.queue.throttle._clock = lambda: 0.0  # without time limits
        self.recorder = EventRecorder(api, lambda: False, self.metrics.dropped_events.inc)
        self.events = JobEvents(self.cache, self.recorder, "me")
        pods = PodControl(api, self.cache, self.queue, self.dry_runs, self.signer, pod_config, self.events.record)
        self.traces = TraceStatusTracker(self.cache, pod_config.collector)
        job_metrics = JobMetrics(self.metrics, self.cache.visible_workloads, self.cache.queues.all, time.time)
        objects = ObjectControl(api, self.cache, self.queue, self.signer, self.events.record)
        self.writer = JobWriter(
            api, self.cache, self.queue, pods, objects, self.events, self.traces, job_metrics, usage=None
        )
        reports = InvalidObjectReporter(self.cache, self.queue, self.recorder, "me")
        hangs = HangSentences(self.wakeup.set)
        self.leader = Leader(
            self.writer,
            reports,
            self.metrics,
            lambda: True,
            self.wakeup,
            Timeouts(),
            hangs,
            self.signer.key,
            start_within_s=LONG_S,
        )
        self.term = self.leader.term = LeaderTerm(Engine())

    def change_leader(self) -> None:
        """Another operator leads from here on: it knows what the cluster has."""
        self.queue.end_term()
        self.queue.begin_term()
        self.term = self.leader.term = LeaderTerm(Engine())

    async def run_cycle(self) -> float:
        """One scheduling cycle; returns its pause."""
        return await self.leader._run_cycle(self.term)

    def submit(self, name: str, version: int, status: dict[str, Any] | None = None, **spec: Any) -> None:
        """A watch delivers a job."""
        document = job_document(name, version, **spec)
        self.cache.jobs.on_upsert(read(RawCustomObject, document if status is None else {**document, "status": status}))

    def phase(self, name: str) -> str:
        """The phase that was last acknowledged."""
        known = self.cache.jobs.get(f"uid-{name}")
        assert known is not None
        return known.job.status.phase

    def pending_events(self) -> list[tuple[str, str]]:
        """Events not sent yet: object and reason."""
        return [(one.manifest["regarding"]["name"], one.manifest["reason"]) for one in self.recorder.pending()]


def admitted(pods: int = 2) -> dict[str, Any]:
    """Status of a job admitted to n1, without pods so far."""
    condition = {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": NOW}
    place = {"role": "trainer", "flavor": "f", "nodes": [{"node": "n1", "indexes": f"0-{pods - 1}"}]}
    return {
        "observedGeneration": 1,
        "phase": "Admitted",
        "submittedAt": NOW,
        "admittedAt": NOW,
        "placement": [place],
        "podsWanted": pods,
        "conditions": [{**condition, "observedGeneration": 1}],
    }


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition of the server or of another task."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)
