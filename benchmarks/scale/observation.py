"""What happened to pods, from every event of a watch."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from benchmarks.scale.client import Client, Failed
from benchmarks.scale.work import JOB


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    phase: str = ""
    conditions: list[_Condition] = []


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[_Pod]


_EVENT = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Seen:
    """When each pod was first seen bound and Ready (seconds of `time.monotonic`), by name; and who is bound now."""

    bound: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)  # gangs with a pod that ended well
    deleted: dict[str, float] = field(default_factory=dict)
    gang_of: dict[str, str] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    node_of: dict[str, str] = field(default_factory=dict)
    events: int = 0
    watches: int = 1  # how often the watch was begun
    error: BaseException | None = None  # that ended the watch

    def partial(self, size_of: Callable[[str], int]) -> list[str]:
        """Gangs that have some but not all pods bound now, and whose pods are not being deleted."""
        stopping_gangs = {self.gang_of[pod] for pod in self.stopping}
        bound = Counter(self.gang_of[pod] for pod in self.node_of)
        return [gang for gang, count in bound.items() if count < size_of(gang) and gang not in stopping_gangs]

    def spread_s(self) -> float:
        """The longest time from a gang's first pod bound to its last."""
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        for pod, at in self.bound.items():
            gang = self.gang_of[pod]
            first[gang] = min(first.get(gang, at), at)
            last[gang] = max(last.get(gang, at), at)
        return max((last[gang] - at for gang, at in first.items()), default=0.0)

    def note(self, line: bytes) -> str:
        """One event of a watch; its version."""
        event = _EVENT.decode(line)
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise Failed(line.decode())
        pod, now = event.object, time.monotonic()
        name = pod.metadata.name
        self.events += 1
        self.gang_of[name] = pod.metadata.labels.get(JOB, "")
        if event.type == "DELETED":
            self.deleted[name] = now
            self.node_of.pop(name, None)
            self.stopping.discard(name)
            return pod.metadata.resource_version
        if pod.metadata.deletion_timestamp is not None:
            self.stopping.add(name)
        if pod.spec.node_name and name not in self.node_of:
            self.node_of[name] = pod.spec.node_name
            self.bound.setdefault(name, now)
        if name not in self.ready and any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions):
            self.ready[name] = now
        if pod.status.phase in ("Succeeded", "Failed"):
            self.ended.setdefault(name, now)
            if pod.status.phase == "Succeeded":
                self.succeeded.add(self.gang_of[name])
        return pod.metadata.resource_version


@dataclass(slots=True)
class Watch:
    """Watches the pods of a namespace into `seen`, from the begin of the context to its end."""

    client: Client
    namespace: str
    seen: Seen = field(default_factory=Seen)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Seen:
        """From now on; pods that exist already are not reported."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        version = msgspec.json.decode(await self.client.get(f"{path}?limit=1"), type=_List).metadata.resource_version
        self._task = asyncio.create_task(self._run(path, version))
        return self.seen

    async def __aexit__(self, *error: object) -> None:
        """End the watch. Raises the error that ended it earlier."""
        assert self._task is not None
        if self._task.done():
            self._task.result()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, path: str, version: str) -> None:
        try:
            while True:  # the server ends a watch that it thinks too slow; no event is lost by that
                async for line in self.client.watch(path, version):
                    version = self.seen.note(line)
                self.seen.watches += 1
        except Exception as error:
            self.seen.error = error
            raise
