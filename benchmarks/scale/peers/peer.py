"""A running peer: its programs, the form of its jobs, and a first pod that shows that it works."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scale.client import Client, Request
from benchmarks.scale.contender import Contender, Rate, Site, WaitReason, no_flags
from benchmarks.scale.peers import account, job_objects, rejections
from benchmarks.scale.work import Jobs, Json
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.controlplane.supervised import Supervised

CANARY = Jobs("canary", 1, 1, 1)
_UP_WITHIN_S, SETTLES_S = 90.0, 2.0


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a peer's programs are started, with the account whose calls count as its own; and those that were."""

    site: Site
    kubeconfig: Path
    programs: list[Supervised] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Of logs and configuration."""
        return self.site.plane.folder

    def run(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a program."""
        self.programs.append(Supervised(name, [str(part) for part in command], self.folder))


@dataclass(frozen=True, slots=True)
class Kind:
    """A scheduler as it is known here. `start` starts its own programs, and makes the queue of the work."""

    name: str
    form: job_objects.Form
    start: Callable[[Ground], None]
    group_path: str | None = None  # where its own objects report why a job waits
    places: bool = False  # it is kube-scheduler itself; else that runs beside it, as in any cluster
    gates: tuple[str, ...] = ()
    controllers_make_pods: bool = False
    beside: Callable[[ControlPlane, Path], AbstractContextManager[Supervised | None]] = lambda plane, folder: (
        nullcontext()
    )

    @property
    def contender(self) -> Contender:
        """What the cases need."""
        flags = pod_makers if self.controllers_make_pods else no_flags
        return Contender(self.name, self._begin, not self.places, self.gates, flags)

    @contextmanager
    def _begin(self, site: Site) -> Iterator[Peer]:
        ground = Ground(site, account.open_account(site.plane))
        with self.beside(site.plane, ground.folder / "controller") as beside:
            try:
                self.start(ground)
                peer = Peer(self, site.plane, site.client, tuple(ground.programs), beside)
                peer.show_up()
                yield peer
            finally:
                for program in ground.programs:
                    program.stop()


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer."""

    kind: Kind
    plane: ControlPlane
    client: Client
    programs: tuple[Supervised, ...]
    beside: Supervised | None = None  # the controller of the kind of its jobs
    count_interval_s: float = 1.0  # the API server's metrics are long

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def own(self) -> dict[str, int]:
        return {program.name: program.pid for program in self.programs}

    @property
    def others(self) -> dict[str, int]:
        return {} if self.beside is None else {self.beside.name: self.beside.pid}

    def check(self) -> None:
        """Raises Died."""
        for program in self.programs:
            program.check()

    def writes(self) -> dict[str, float]:
        return account.writes(self.plane)

    def agrees(self, own: Mapping[str, float], served: Mapping[str, float]) -> None:
        """The API server's count is the only one."""

    def one_queue(self) -> None:
        """There is one since its start."""

    def requests(self, jobs: Jobs) -> Iterator[Request]:
        return job_objects.requests(self.kind.form, jobs)

    def watch_reason(self, job: str) -> AbstractAsyncContextManager[WaitReason]:
        return rejections.watch_reason(self.client, self.kind.group_path, job)

    def show_up(self) -> None:
        """Let it start one pod, so that it is known to work and has read what there is; that is removed again.

        Raises Died, or AssertionError where it takes too long.
        """
        name = next(CANARY.names())
        documents = self.kind.form(CANARY, name)
        for path, body in documents:
            self._create(path, body)
        self._wait(
            "it has started a pod", lambda: any(_is(pod, "Ready") for pod in self.plane.api.items(job_objects.PODS))
        )
        for path, body in reversed(documents):
            self.plane.api.delete(f"{path}/{body['metadata']['name']}", propagationPolicy="Background")
        self._wait("that pod is deleted", lambda: not self.plane.api.items(job_objects.PODS))
        time.sleep(SETTLES_S)

    def _create(self, path: str, body: Json) -> None:
        """Again while the API server does not know the kind yet."""
        until = time.monotonic() + _UP_WITHIN_S
        while True:
            try:
                self.plane.api.create(path, body)
            except Refused as refused:
                if refused.code == 409 or time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        def either() -> bool:
            self.check()
            return holds()

        self.plane.wait_for(f"{self.name}: {what}", either, _UP_WITHIN_S)


def pod_makers(rate: Rate) -> tuple[str, ...]:
    """Controllers that make the scheduler's pods may make as many calls as it may."""
    return f"--kube-api-qps={rate.qps}", f"--kube-api-burst={rate.burst}", "--concurrent-job-syncs=20"


def _is(thing: Json, condition: str) -> bool:
    conditions = thing.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def add_crds(plane: ControlPlane, folder: Path) -> None:
    """The CRDs in a folder's .yaml files; returns when they can be used."""
    plane.kubectl("create", "-f", str(folder))
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    plane.wait_for("the CRDs can be used", lambda: all(_is(one, "Established") for one in plane.api.items(path)))


def add_objects(plane: ControlPlane, *objects: Json) -> None:
    """Any objects, whose kinds are there."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    plane.kubectl("create", "-f", "-", stdin=json.dumps(listed))


def add_namespaces(plane: ControlPlane, *names: str) -> None:
    """Namespaces that a peer's programs expect."""
    for name in names:
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
