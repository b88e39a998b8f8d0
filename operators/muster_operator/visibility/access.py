"""What a user may read: SubjectAccessReviews, whose results are kept for a few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster.kube.async_client import AsyncKubeClient
from muster_operator.visibility.request_header import User

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
CACHE_S = 10.0
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


class _ReviewStatus(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _ReviewStatus


class AccessReviewer:
    """Asks the API server. Results are kept for `CACHE_S`, so that a right that is withdrawn works that much longer."""

    def __init__(self, api: AsyncKubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._cache: OrderedDict[tuple[User, Permission], tuple[float, bool]] = OrderedDict()

    async def is_allowed(self, user: User, permission: Permission) -> bool:
        """Whether the user has the right. Raises `ClusterError` if the API server does not say."""
        key, now = (user, permission), self._clock()
        known = self._cache.get(key)
        if known is not None and now < known[0]:
            return known[1]
        answer = await self._api.post(REVIEWS, msgspec.json.encode(_manifest(user, permission)))
        try:
            allowed = msgspec.json.decode(answer, type=_Review).status.allowed
        except ValueError as error:
            raise ClusterError(f"the answer to a SubjectAccessReview is none: {answer[:200]!r}") from error
        self._cache[key] = self._clock() + CACHE_S, allowed
        self._cache.move_to_end(key)
        while len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return allowed

    async def readable_namespaces(self, user: User, namespaces: Collection[str]) -> frozenset[str]:
        """Those of the namespaces whose jobs the user may list. Raises as `is_allowed` does."""
        if len(namespaces) > 1 and await self.is_allowed(user, list_jobs()):
            return frozenset(namespaces)
        ordered = sorted(namespaces)
        allowed = await asyncio.gather(*(self.is_allowed(user, list_jobs(name)) for name in ordered))
        return frozenset(name for name, may in zip(ordered, allowed, strict=True) if may)


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
