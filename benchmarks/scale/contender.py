"""The interface of a scheduler to the cases: Muster, and those it is compared with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.scale.client import Client, Request
from benchmarks.scale.work import Jobs
from tests.cluster.controlplane.plane import ControlPlane


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls a second and in one burst that each program of a scheduler may make: the same for all."""

    qps: int = 1000
    burst: int = 2000


@dataclass(slots=True)
class WaitReason:
    """Why a job waits, as its user sees it. `seen_at` is when that was first seen (`time.monotonic`)."""

    code: str = ""
    message: str = ""
    seen_at: float = 0.0
    _is_seen: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, code: str, message: str) -> None:
        """Record the newest reason; the time is that of the first."""
        self.code, self.message = code, message
        if not self._is_seen.is_set():
            self.seen_at = time.monotonic()
            self._is_seen.set()

    async def first_seen(self, limit_s: float) -> None:
        """Return once there is a reason. Raises TimeoutError."""
        await asyncio.wait_for(self._is_seen.wait(), limit_s)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else ""


class Scheduler(Protocol):
    """A running scheduler."""

    @property
    def name(self) -> str: ...

    @property
    def own(self) -> Mapping[str, int]:
        """Process ids of its own programs, by name."""

    @property
    def others(self) -> Mapping[str, int]:
        """Process ids of programs that were started with it and are not its own, by name."""

    @property
    def count_interval_s(self) -> float:
        """How often `writes` may be called without much cost, in seconds."""

    def check(self) -> None:
        """Raises where one of its programs has ended."""

    def writes(self) -> dict[str, float]:
        """Writes to the API that its own programs made, by kind; reads left out."""

    def agrees(self, own: Mapping[str, float], served: Mapping[str, float]) -> bool | None:
        """Whether its own count fits what the API server counted of all clients; None: it has no count of its own."""

    def one_queue(self) -> None:
        """Let one queue have all nodes, where it knows queues."""

    def requests(self, jobs: Jobs) -> Iterator[Request]:
        """What is sent to create the jobs."""

    def watch_reason(self, job: str) -> AbstractAsyncContextManager[WaitReason]:
        """Hear, from now on, why a job waits."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a scheduler finds when it starts: a control plane with its nodes, and the namespace of the work."""

    plane: ControlPlane
    client: Client
    rate: Rate
    nodes: int
    gpus: int  # of all nodes


def no_flags(rate: Rate) -> tuple[str, ...]:
    """Whatever the rate."""
    return ()


@dataclass(frozen=True, slots=True)
class Contender:
    """A scheduler that can be started, and what its control plane needs."""

    name: str
    begin: Callable[[Site], AbstractContextManager[Scheduler]]
    kube_scheduler: bool = True  # the control plane's own; else `begin` starts it, if any
    gates: tuple[str, ...] = ()
    controllers: Callable[[Rate], tuple[str, ...]] = no_flags  # flags of kube-controller-manager
