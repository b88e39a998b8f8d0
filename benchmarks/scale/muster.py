"""Muster as the cases see it: its operator as a process, jobs as TrainingJobs, reasons from their status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from benchmarks.scale.client import Client, Failed, Request
from benchmarks.scale.contender import Contender, Site, WaitReason
from benchmarks.scale.programs import metrics
from benchmarks.scale.work import NAMESPACE, Jobs, Json
from tests.cluster.controlplane.nodes import GPU
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import install
from tests.cluster.operator.process import Operator

GROUP = "/apis/muster.dev/v1alpha1"
FLAVOR = "gpus"
NODE_LABELS = {"pool": FLAVOR}
WRITES = ("POST", "PATCH", "PUT", "DELETE")
_PATH = f"{GROUP}/namespaces/{NAMESPACE}/trainingjobs"
_LEASE = ("--lease-duration-seconds", "15", "--renew-deadline-seconds", "10", "--retry-period-seconds", "2")
_ALONE = ("PUT trainingjobs/status", "POST services")  # only the scheduler writes these
_SOON_S, _LATER_S = 0.01, 1.0


@dataclass(frozen=True, slots=True)
class Muster:
    """A running operator and the cluster's sizes."""

    plane: ControlPlane
    operator: Operator
    client: Client
    gpus: int
    name: str = "muster"
    count_interval_s: float = 0.25

    @property
    def own(self) -> dict[str, int]:
        return {"operator": self.operator.pid}

    @property
    def others(self) -> dict[str, int]:
        return {}

    def check(self) -> None:
        """Raises AssertionError with the end of the log where the operator has ended."""
        assert self.operator.running, self.operator.tail()

    def writes(self) -> dict[str, float]:
        """How many writes the operator says it made, by verb and resource; dry runs, reads and its Lease left out."""
        counted: dict[str, float] = {}
        for labels, value in metrics(self.operator.get("/metrics")[1], "muster_api_calls_total"):
            if labels["verb"] in WRITES and labels["resource"] != "leases":
                key = f"{labels['verb']} {labels['resource']}"
                counted[key] = counted.get(key, 0.0) + value
        return counted

    def agrees(self, own: Mapping[str, float], served: Mapping[str, float]) -> bool:
        """Whether the API server served as many of _ALONE as the operator sent."""
        return all(own.get(key, 0.0) == served.get(key, 0.0) for key in _ALONE)

    def one_queue(self) -> None:
        add_queue(self.plane, "all", None, {GPU: str(self.gpus)})

    def requests(self, jobs: Jobs) -> Iterator[Request]:
        """One TrainingJob each."""
        mark = "@@@"
        before, _, after = msgspec.json.encode(training_job(jobs, mark)).partition(mark.encode())
        for name in jobs.names():
            yield Request(_PATH, before + name.encode() + after)

    @asynccontextmanager
    async def watch_reason(self, job: str) -> AsyncIterator[WaitReason]:
        """Poll the job's status without pause until it has a reason, then once a second."""
        reason = WaitReason()
        task = asyncio.create_task(self._poll(job, reason))
        try:
            yield reason
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _poll(self, job: str, reason: WaitReason) -> None:
        while True:
            with contextlib.suppress(Failed):  # it is not there yet
                code, message = reason_in(msgspec.json.decode(await self.client.get(f"{_PATH}/{job}")))
                if code:
                    reason.record(code, message)
            await asyncio.sleep(_LATER_S if reason.code else _SOON_S)


@contextmanager
def running(site: Site, *more: str) -> Iterator[Muster]:
    """Install what it needs, start it with more flags, and wait until it leads; it has to end well."""
    plane, rate = site.plane, site.rate
    install(plane)
    create(plane, "flavors", FLAVOR, {
        "nodeLabels": NODE_LABELS,
        "topology": [
            {"name": "block", "nodeLabel": "example.com/block"},
            {"name": "rack", "nodeLabel": "example.com/rack"},
            {"name": "host", "nodeLabel": "kubernetes.io/hostname"},
        ],
    })  # fmt: skip
    flags = ("--qps", str(rate.qps), "--burst", str(rate.burst), "--log-level", "info", *more)
    operator = Operator(plane.kubeconfig(), plane.folder / "operator.log", *flags, *_LEASE)
    try:
        operator.wait("it leads", lambda: operator.leads)
        yield Muster(plane, operator, site.client, site.gpus)
        assert operator.stop() == 0, operator.tail()
    finally:
        if operator.running:
            operator.kill()


MUSTER = Contender("muster", running)


def training_job(jobs: Jobs, name: str) -> Json:
    """One of the jobs."""
    template: Json = {"spec": jobs.pod_spec()}
    if jobs.does:
        template["metadata"] = {"annotations": dict(jobs.does)}
    role = {"name": "worker", "replicas": jobs.pods, "template": template}
    wanted = {"queue": jobs.queue, "roles": [role], **jobs.more}
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": meta, "spec": wanted}


def request(jobs: Jobs, name: str) -> Request:
    """What is sent to create one of the jobs under a name of its own."""
    return Request(_PATH, msgspec.json.encode(training_job(jobs, name)))


def reason_in(job: Json) -> tuple[str, str]:
    """Why a job waits, and the sentence about it, from the object; empty while nothing was said."""
    status = job.get("status") or {}
    for condition in status.get("conditions", ()):
        if condition["type"] == "Admitted" and condition["status"] == "False":
            position = f" (position {status['queuePosition']})" if "queuePosition" in status else ""
            return condition["reason"], condition["message"] + position
    return "", ""


def create(plane: ControlPlane, plural: str, name: str, spec: Mapping[str, Any]) -> None:
    """A Queue or a Flavor."""
    kind = {"flavors": "Flavor", "queues": "Queue"}[plural]
    body = {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}
    plane.api.create(f"{GROUP}/{plural}", body)


def add_queue(plane: ControlPlane, name: str, parent: str | None, guaranteed: Mapping[str, str], **more: Any) -> None:
    """A queue that every namespace may use, with a guarantee of the flavor."""
    wanted: dict[str, Any] = {"resources": [{"flavor": FLAVOR, "guaranteed": dict(guaranteed), **more}]}
    if parent is None:
        wanted["namespaceSelector"] = {}
    else:
        wanted["parent"] = parent
    create(plane, "queues", name, wanted)
