"""Starts and stops objects of other kinds: patches of the object, and of its gated pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.cluster import DeletePod, PatchObject, RecordEvent, UngatePod
from muster.kinds.suspended.ungate import release_patch
from muster.kube.async_client import ApiError, AsyncKubeClient, NoAnswer, is_server_wide
from muster.kube.objects import RawQueuedObject, V1Pod
from muster.kube.requests import APPLICATION_JSON, JSON_PATCH, MERGE_PATCH
from muster.kube.resources import PODS
from muster_operator.cache.cached_pod import CachedPod
from muster_operator.cache.cached_workload import CachedWorkload
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.pod_builder.job_objects import SIGNATURE_ANNOTATION
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.writes.queue import WriteQueue
from muster_operator.writes.uncertain import WriteTarget

_LOG = logging.getLogger("muster.operator")
_GONE = (404, 409)  # the pod was changed or deleted meanwhile; the watch delivers that
_object = msgspec.json.Decoder(RawQueuedObject)
_pod = msgspec.json.Decoder(V1Pod)


@dataclass(slots=True)
class ObjectControl:
    """Writes to the API server, and updates the cache with what it answers."""

    api: AsyncKubeClient
    cache: ClusterCache
    queue: WriteQueue
    signer: PodSigner
    record_event: Callable[[RecordEvent], None]

    async def patch(self, known: CachedWorkload, write: PatchObject) -> bool:
        """Patch the object; False if it was changed meanwhile. Raises ClusterError for any other failure."""
        path = known.paths[0] + (f"/{write.subresource}" if write.subresource else "")
        target = WriteTarget(known.uid, known.paths[0])
        body = msgspec.json.encode(write.patch)
        form = MERGE_PATCH if isinstance(write.patch, Mapping) else JSON_PATCH
        try:
            answer = await self.queue.uncertain.perform(
                target, lambda: self.api.patch(path, body, accept=APPLICATION_JSON, content_type=form)
            )
        except ApiError as error:
            if error.code in _GONE:
                return False
            if not is_server_wide(error) and self.queue.first_report(known.uid, "PatchRefused"):
                message = f"{known.resource.kind} cannot be patched: {error.message or error}"
                self.record_event(RecordEvent(known.uid, "Warning", "PatchRefused", message))
            raise
        found = self.cache.deliver(known.paths[0].rpartition("/")[0])
        if found is not None:
            found[1](decode_truncated(_object.decode, answer))
        return True

    async def apply(self, uid: str, writes: Sequence[UngatePod | DeletePod], deferred: set[str]) -> None:
        known = self.cache.workload(uid)
        if known is not None:
            results = await asyncio.gather(
                *(self._apply_one(known, one, deferred) for one in writes), return_exceptions=True
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def _apply_one(self, known: CachedWorkload, write: UngatePod | DeletePod, deferred: set[str]) -> None:
        pod = self.cache.pods.get(known.uid, write.name)
        if pod is None:
            self.cache.pods.remove_tombstone(known.uid, write.name)
            return
        try:
            if isinstance(write, UngatePod):
                await self._ungate(known, pod, write)
            else:
                await self._delete(known, pod, write)
        except NoAnswer as error:  # the pod's version and uid guard the repeated request
            self.queue.record_failure(known.uid, error, deferred)
        except ApiError as error:
            if error.code in _GONE:
                return
            if is_server_wide(error):
                raise
            self.queue.record_failure(known.uid, error, deferred)
            if self.queue.first_report(known.uid, "PodRefused"):
                message = f"pod {write.name} cannot be released or deleted: {error.message or error}"
                _LOG.warning("pod not written", extra={"job": known.key, "pod": write.name, "why": message})
                self.record_event(RecordEvent(known.uid, "Warning", "PodRefused", message))

    async def _ungate(self, known: CachedWorkload, pod: CachedPod, write: UngatePod) -> None:
        """Patch the pod as the watch has shown it, unless it was changed since."""
        if pod.gated is None:
            return
        flavor = self.cache.flavors.get(write.flavor)
        tolerations = flavor.spec.tolerations if flavor is not None else []
        patch = release_patch(pod.gated, write.node, str(pod.version), tolerations)
        if pod.queue:  # it has annotations, and a later operator knows by the signature that it was admitted
            await self.signer.key.load()
            pointer = f"/metadata/annotations/{SIGNATURE_ANNOTATION.replace('/', '~1')}"
            patch.append({"op": "add", "path": pointer, "value": self.signer.released(pod, write.node)})
        path = PODS.path(known.namespace, write.name)
        answer = await self.api.patch(
            path, msgspec.json.encode(patch), accept=APPLICATION_JSON, content_type=JSON_PATCH
        )
        self.cache.pods.on_read(decode_truncated(_pod.decode, answer))

    async def _delete(self, known: CachedWorkload, pod: CachedPod, write: DeletePod) -> None:
        grace_s = 0 if write.force else max(1, round(write.grace_s))
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}
        await self.api.delete(PODS.path(known.namespace, write.name), msgspec.json.encode(options))
        self.cache.pods.on_delete_requested(pod)
