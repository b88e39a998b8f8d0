"""What a user may read: SubjectAccessReviews, whose results are kept for a few seconds and whose number is bounded."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from muster.errors import ClusterError, Refused
from muster.kube.async_client import AsyncKubeClient
from muster_operator.visibility.request_header import User

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
CACHE_S = 10.0
MAX_NAMESPACES = 500
"""A list of more namespaces needs the right to list the jobs of all."""

_MAX_REVIEWS = 16  # at once
_MAX_CACHED = 20_000


@dataclass(frozen=True, slots=True)
class Permission:
    """A right on a resource; an empty namespace: in all namespaces, or cluster-scoped."""

    verb: str
    group: str
    resource: str
    namespace: str = ""


LIST_QUEUES = Permission("list", "muster.dev", "queues")
LIST_NODES = Permission("list", "", "nodes")


def list_jobs(namespace: str = "") -> Permission:
    """The right to list TrainingJobs, in one namespace or in all."""
    return Permission("list", "muster.dev", "trainingjobs", namespace)


class TooManyNamespaces(Refused):
    """Too many namespaces to ask for the user's right in each."""

    reason = "Forbidden"


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus


class AccessReviewer:
    """Asks the API server. Results are kept for `CACHE_S`, so that a right that is withdrawn works that much longer."""

    def __init__(
        self, api: AsyncKubeClient, clock: Callable[[], float] = time.monotonic, max_namespaces: int = MAX_NAMESPACES
    ) -> None:
        self._api = api
        self._max_namespaces = max_namespaces
        self._clock = clock
        self._cache: OrderedDict[tuple[User, Permission], tuple[float, bool]] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[User, Permission], asyncio.Lock] = WeakValueDictionary()
        # A review takes its token of the rate limit when it starts: those that wait here have taken none.
        self._running = asyncio.Semaphore(_MAX_REVIEWS)

    async def is_allowed(self, user: User, permission: Permission) -> bool:
        """Whether the user has the right. Raises `ClusterError` if the API server does not say."""
        key = user, permission
        allowed = self._cached(key)
        if allowed is None:
            async with self._locks.setdefault(key, asyncio.Lock()):  # the first of equal requests asks
                allowed = self._cached(key)
                if allowed is None:
                    async with self._running:
                        allowed = await self._review(user, permission)
                    self._keep(key, allowed)
        return allowed

    def _cached(self, key: tuple[User, Permission]) -> bool | None:
        expires, allowed = self._cache.get(key, (self._clock(), False))
        return allowed if self._clock() < expires else None

    def _keep(self, key: tuple[User, Permission], allowed: bool) -> None:
        self._cache[key] = self._clock() + CACHE_S, allowed
        self._cache.move_to_end(key)
        while len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)

    async def _review(self, user: User, permission: Permission) -> bool:
        answer = await self._api.post(REVIEWS, msgspec.json.encode(_manifest(user, permission)))
        try:
            return msgspec.json.decode(answer, type=_Review).status.allowed
        except ValueError as error:
            raise ClusterError(f"the answer to a SubjectAccessReview is not one: {answer[:200]!r}") from error

    async def readable_namespaces(self, user: User, namespaces: Collection[str]) -> frozenset[str]:
        """Those of the namespaces whose jobs the user may list. Raises as `is_allowed` does, and
        `TooManyNamespaces`."""
        if len(namespaces) > 1 and await self.is_allowed(user, list_jobs()):
            return frozenset(namespaces)
        if len(namespaces) > self._max_namespaces:
            message = (
                f"user {user.name!r} cannot list trainingjobs.muster.dev in all namespaces, and more than"
                f" {self._max_namespaces} have jobs: name a namespace"
            )
            raise TooManyNamespaces(message)
        ordered = sorted(namespaces)
        readable: set[str] = set()
        for first in range(0, len(ordered), _MAX_REVIEWS):
            batch = ordered[first : first + _MAX_REVIEWS]
            allowed = await asyncio.gather(*(self.is_allowed(user, list_jobs(name)) for name in batch))
            readable.update(name for name, may in zip(batch, allowed, strict=True) if may)
        return frozenset(readable)


def _manifest(user: User, permission: Permission) -> dict[str, Any]:
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user.name,
            "uid": user.uid,
            "groups": user.groups,
            "extra": dict(user.extra),
            "resourceAttributes": {
                "verb": permission.verb,
                "group": permission.group,
                "resource": permission.resource,
                "namespace": permission.namespace,
            },
        },
    }
