"""What the operator's parts know of an object that queues, whatever its kind, and what keeps such objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from muster.api.spec import ObjectMeta, QueueingStatus
from muster.kube.resources import Resource
from muster.workload.protocol import Workload
from muster_operator.cache.cached_pod import JobKey


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """The request that writes a status: a merge patch of `path`, where `replaces` is set its replacement, where
    `collection` is set its creation there."""

    path: str
    body: Mapping[str, Any]
    collection: str = ""
    replaces: bool = False


class CachedWorkload(Protocol):
    """An object that queues, as stored in the API server."""

    @property
    def uid(self) -> str: ...

    @property
    def name(self) -> JobKey: ...

    @property
    def namespace(self) -> str: ...

    @property
    def key(self) -> str:
        """NAMESPACE/NAME."""
        ...

    @property
    def resource(self) -> Resource: ...

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def workload(self) -> Workload:
        """It as the engine would see it, without what dry runs have shown."""
        ...

    @property
    def queue(self) -> str: ...

    @property
    def status(self) -> QueueingStatus:
        """The status that counts: a write without an answer may be assumed to have been executed."""
        ...

    @property
    def acknowledged_status(self) -> QueueingStatus:
        """The status that is stored."""
        ...

    @property
    def version(self) -> str:
        """Of everything that decisions are made on: other whenever the object or its status is."""
        ...

    @property
    def paths(self) -> tuple[str, ...]:
        """Where it is read: the object, and its status if that is an object of its own."""
        ...

    def status_request(self, status: QueueingStatus, *, guarded: bool = True) -> StatusRequest:
        """What writes this status; `guarded`: unless the stored one has changed."""
        ...


class WorkloadStore(Protocol):
    """A cache of such objects, which takes our own writes over."""

    def on_status_written(self, uid: str, status: QueueingStatus, version: int, queue: str) -> None:
        """Our write of a status was acknowledged; `queue`: with which it was written, although users may change the
        label meanwhile."""
        ...

    def assume_status(self, uid: str, status: QueueingStatus) -> None:
        """Our write of an admission has no answer: it counts until `end_assumption`, or until something newer is
        observed."""
        ...

    def end_assumption(self, uid: str) -> None:
        """The outcome of our writes is known: what the cluster has counts."""
        ...
