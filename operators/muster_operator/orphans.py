"""Deletes pods of jobs that do not exist any more.

Such a pod would otherwise run for ever (`kubectl delete --cascade=orphan`), or for its own grace period, however long
(any other deletion). Pods that a controller of another kind has created are its user's: they are charged, and never
deleted. That the job is gone is read from the API server, not from the cache, and the pod's signature
proves that Muster created it (`PodCache.orphans`). On a lost node no kubelet ends a pod: it is deleted at once, as
those of jobs that exist.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from muster.cluster import OrphanedPod
from muster.errors import ClusterError
from muster.kinds.trainingjob.arrays import split_index_key
from muster.kube.async_client import ApiError, AsyncKubeClient, is_server_wide
from muster.kube.objects import V1ObjectMeta
from muster.kube.resources import PODS, TRAINING_JOBS
from muster.state.projection import MaxGracePeriods
from muster.workload.node_loss import is_node_lost
from muster.workload.timeouts import Timeouts
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.informers import read_by_name
from muster_operator.writes.queue import WriteQueue

_LOG = logging.getLogger("muster.operator")
_MAX_DELETIONS = 256  # of one cycle


class _Job(msgspec.Struct):
    metadata: V1ObjectMeta


@dataclass(slots=True)
class OrphanDeleter:
    """Deletes them with their own grace period, at most the `maxGracePeriodSeconds` of their queue."""

    api: AsyncKubeClient
    cache: ClusterCache
    queue: WriteQueue
    timeouts: Timeouts
    _gone: set[str] = field(default_factory=set)  # uids of jobs that were looked for and do not exist

    async def delete(self, now: float) -> bool:
        """Delete them; returns whether some are left. `now`: Unix time. Raises ClusterError for errors that affect all
        objects."""
        orphans = [one for one in self.cache.pods.orphans() if not self.cache.objects.has_status(one.view.job_uid)]
        if not orphans:
            self._gone.clear()
            return False
        limits = MaxGracePeriods(self.cache.queues.all())
        graces = [(one, self._grace_s(one, limits[one.queue], now)) for one in orphans]
        left = [(one, grace_s) for one, grace_s in graces if _outlasts(one, grace_s)]
        self._gone &= {one.view.job_uid for one in orphans}
        taken = tuple(islice((entry for entry in left if self._is_due(entry[0])), _MAX_DELETIONS))
        jobs = {one.view.job_uid: one for one, _ in taken}
        unknown = jobs.keys() - self._gone
        found = await asyncio.gather(*(self._is_job_gone(jobs[uid]) for uid in unknown))
        self._gone |= {uid for uid, is_gone in zip(unknown, found, strict=True) if is_gone}
        deleted = await asyncio.gather(
            *(self._delete(one, grace_s) for one, grace_s in taken if one.view.job_uid in self._gone)
        )
        return sum(deleted) < len(left)

    def _is_due(self, pod: OrphanedPod) -> bool:
        """Whether neither the pod nor the search for its job has a pause: those that have do not hold up others."""
        is_gone = pod.view.job_uid in self._gone
        return self.queue.may_retry(PODS.path(pod.namespace, pod.view.name) if is_gone else _job_path(pod))

    def _grace_s(self, pod: OrphanedPod, limit_s: float, now: float) -> int:
        node = self.cache.nodes.view(pod.view.node)
        if node is not None and is_node_lost(node, now, self.timeouts):
            return 0
        return max(1, round(min(pod.grace_s, limit_s)))  # 0 would not wait for the kubelet

    async def _is_job_gone(self, pod: OrphanedPod) -> bool:
        """Whether the API server has no job of this name and uid; False if that is not known."""
        path = _job_path(pod)
        try:
            name, uid = _object_of(pod)
            found = await read_by_name(self.api, TRAINING_JOBS.path(pod.namespace), name, _Job)
            if any(one.metadata.uid == uid for one in found):
                raise ApiError(409, "", f"job {pod.namespace}/{pod.job} exists")  # the watch will deliver it
        except ClusterError as error:
            if is_server_wide(error):
                raise
            self.queue.record_failure(path, error, set())
            return False
        self.queue.reset(path)
        _LOG.info(
            "job deleted, its pods are deleted",
            extra={"job": f"{pod.namespace}/{pod.job}", "uid": pod.view.job_uid, "queue": pod.queue},
        )
        return True

    async def _delete(self, one: OrphanedPod, grace_s: int) -> bool:
        """Whether the deletion was requested."""
        pod = self.cache.pods.find(one.namespace, one.view.name)
        if pod is None:
            return True
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}
        if not await self.queue.delete(PODS.path(one.namespace, one.view.name), msgspec.json.encode(options)):
            return False
        self.cache.pods.on_delete_requested(pod)
        return True


def _object_of(pod: OrphanedPod) -> tuple[str, str]:
    """Name and uid of its job; of the array that its job is an index of."""
    uid, index = split_index_key(pod.view.job_uid)
    return pod.job if index is None else pod.job.removesuffix(f"-{index}"), uid


def _job_path(pod: OrphanedPod) -> str:
    return TRAINING_JOBS.path(pod.namespace, _object_of(pod)[0])


def _outlasts(pod: OrphanedPod, grace_s: float) -> bool:
    """Whether the pod is not terminating, or with a longer grace period."""
    return not pod.view.deleting or (pod.view.grace_s is not None and pod.view.grace_s > grace_s)
