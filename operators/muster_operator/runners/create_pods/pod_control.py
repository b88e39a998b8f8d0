"""Creates and deletes the pods of a gang, and creates what its first pod needs.

A rejection by the API server affects this job only: see `writes.queue`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from muster.cluster import CreatePod, DeletePod, RecordEvent
from muster.errors import InvalidSpec
from muster.kube.async_client import (
    INVALID_REQUEST_CODES,
    METADATA_ONLY,
    ApiError,
    AsyncKubeClient,
    NoAnswer,
    is_server_wide,
)
from muster.kube.resources import PODS, SERVICES
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cached_pod import created_pod
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.collectors.tokens import CollectorTokens
from muster_operator.dry_run import DryRuns
from muster_operator.pod_builder.job_objects import needs_service, service_manifest
from muster_operator.pod_builder.pods import PodConfig, pod_manifest
from muster_operator.runners.create_pods.pod_groups import PodGroups
from muster_operator.runners.create_pods.pod_owner import pod_owner
from muster_operator.runners.create_pods.pod_signatures import PodSigner
from muster_operator.writes.queue import WriteQueue, written_metadata
from muster_operator.writes.uncertain import WriteTarget

_LOG = logging.getLogger("muster.operator")
_MAX_ENTRIES = 50_000  # of what was created before an attempt
_MAX_MANIFESTS = 128  # manifests in memory at once, more than requests in flight


@dataclass(slots=True)
class PodControl:
    """Writes pods to the API server, and updates the cache with acknowledged writes."""

    api: AsyncKubeClient
    cache: ClusterCache
    queue: WriteQueue
    dry_runs: DryRuns
    signer: PodSigner
    pod_config: PodConfig
    record_event: Callable[[RecordEvent], None]
    tokens: CollectorTokens | None = None  # None: no pod has a collector
    pod_groups: PodGroups | None = None  # None: kube-scheduler binds each pod separately
    _manifest_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_MANIFESTS))
    _services: dict[str, int] = field(default_factory=dict)  # by job: the attempt before which its Service was created

    async def apply(self, uid: str, writes: Sequence[CreatePod | DeletePod], deferred: set[str]) -> None:
        """All pod writes of one job. Jobs with a rejected write are added to `deferred`; raises ClusterError for errors
        that affect all objects."""
        known = self.cache.jobs.get(uid)
        if known is None:
            return
        created = next((one for one in writes if isinstance(one, CreatePod)), None)
        if created is not None and not await self._ensure_prerequisites(known, created, deferred):
            return
        if created is not None and self.queue.failures(uid) > 1:
            # After repeated rejections one request is enough to find out: a webhook may be slow.
            await self._apply_one(known, created, deferred)
            writes = [
                one for one in writes if one is not created and not (uid in deferred and isinstance(one, CreatePod))
            ]
        if len(writes) == 1:
            await self._apply_one(known, writes[0], deferred)
            return
        results = await asyncio.gather(
            *(self._apply_one(known, one, deferred) for one in writes), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _apply_one(self, known: CachedJob, write: CreatePod | DeletePod, deferred: set[str]) -> None:
        await (
            self._create(known, write, deferred)
            if isinstance(write, CreatePod)
            else self._delete(known, write, deferred)
        )

    async def _ensure_prerequisites(self, known: CachedJob, created: CreatePod, deferred: set[str]) -> bool:
        """Create what a gang's first pod needs; False where that is rejected."""
        try:
            await self.signer.key.load()
            await self._ensure_service(known)
            if self.tokens is not None:
                await self.tokens.ensure(known)
            if self.pod_groups is not None:
                await self.pod_groups.ensure(known)
        except ApiError as error:
            if is_server_wide(error):
                raise
            self._on_create_refused(known, created, error, deferred)
            return False
        return True

    async def _ensure_service(self, known: CachedJob) -> None:
        """Create the Service before each attempt: it may have been deleted, and no attempt could start without."""
        attempt = known.job.status.attempt
        if self._services.get(known.uid) == attempt or not needs_service(known.job):
            return
        await self.api.create_if_absent(SERVICES.path(known.namespace), service_manifest(known.job))
        if len(self._services) >= _MAX_ENTRIES:
            self._services.clear()  # costs only repeated requests
        self._services[known.uid] = attempt

    async def _create(self, known: CachedJob, write: CreatePod, deferred: set[str]) -> None:
        if write.role not in known.templates:
            return
        target = WriteTarget(
            known.uid,
            PODS.path(known.namespace, write.name),
            still_wanted=lambda: self.cache.jobs.get(known.uid) is not None,  # the job may be deleted meanwhile
        )
        try:
            answer = await self.queue.uncertain.perform(target, lambda: self._post(known, write))
        except NoAnswer as error:
            self.queue.record_failure(known.uid, error, deferred)
            return
        except ApiError as error:
            if error.reason == "AlreadyExists":
                if self.cache.pods.get(known.uid, write.name) is not None:
                    return
                # Names follow from the job and the attempt, so another client may have created the pod in advance.
                message = f"pod {write.name} exists and does not belong to the job; delete it"
                error = ApiError(409, error.reason, message)
            if is_server_wide(error):
                raise
            self._on_create_refused(known, write, error, deferred)
            return
        meta = written_metadata(answer)
        owner = pod_owner(meta)
        if owner is not None and owner.job.uid != known.uid:
            owner = None
        request = known.templates[write.role].request
        self.cache.pods.on_created(created_pod(meta, owner, write.node, request))

    async def _post(self, known: CachedJob, write: CreatePod) -> bytes:
        """Create the pod. Its manifest is built only when its request is next: those of a large gang together may be
        large."""
        async with self._manifest_slots:
            document = await self.dry_runs.template_reader.read(known, write.role)
            flavor = self.cache.flavors.get(write.flavor)
            tolerations = flavor.spec.tolerations if flavor is not None else []
            try:
                manifest = pod_manifest(known.job, document, write, tolerations, self.pod_config)
            except InvalidSpec as error:
                raise ApiError(422, "", str(error)) from error
            if self.pod_groups is not None:
                self.pod_groups.set_group(manifest, known.uid, write.attempt)
            self.signer.sign(manifest, write.node, self.cache.jobs.admitted_request(known, write.role))
            return await self.api.post(PODS.path(known.namespace), msgspec.json.encode(manifest), accept=METADATA_ONLY)

    async def _delete(self, known: CachedJob, write: DeletePod, deferred: set[str]) -> None:
        pod = self.cache.pods.get(known.uid, write.name)
        if pod is None:
            self.cache.pods.remove_tombstone(known.uid, write.name)
            return
        grace_s = 0 if write.force else max(1, round(write.grace_s))  # 0 would not wait for the kubelet
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}
        path = PODS.path(known.namespace, write.name)
        try:
            await self.api.delete(path, msgspec.json.encode(options))
        except NoAnswer as error:  # it names the pod's uid, so it may be repeated
            self.queue.record_failure(known.uid, error, deferred)
            return
        except ApiError as error:
            if error.code in (404, 409):  # no pod of that name and uid exists; the watch will deliver that
                self.cache.pods.on_delete_requested(pod)
                return
            if is_server_wide(error):
                raise
            self._on_delete_refused(known, write, error, deferred)
            return
        self.cache.pods.on_delete_requested(pod)

    # ---- rejections

    def _on_create_refused(self, known: CachedJob, write: CreatePod, error: ApiError, deferred: set[str]) -> None:
        """A pod or a prerequisite was rejected. If the request is invalid or fails repeatedly, jobs with the same
        template are not admitted until a dry run succeeds."""
        why = error.message or str(error)
        self.queue.record_failure(known.uid, error, deferred)
        if error.code not in INVALID_REQUEST_CODES and self.queue.failures(known.uid) <= 1:
            return  # mostly transient
        # After a conflict the request is valid: many pods update one quota at a time.
        if error.code != 409 and self.dry_runs.on_pod_refused(known, write.role, why):
            self.cache.jobs.on_dry_run_result(known.namespace, known.templates[write.role].digest)
        self._record_warning_once(known, "PodRejected", why, write.name)

    def _on_delete_refused(self, known: CachedJob, write: DeletePod, error: ApiError, deferred: set[str]) -> None:
        why = error.message or str(error)
        self.queue.record_failure(known.uid, error, deferred)
        self._record_warning_once(known, "FailedDelete", f"pod {write.name} cannot be deleted: {why}", write.name)

    def _record_warning_once(self, known: CachedJob, reason: str, message: str, pod: str) -> None:
        if self.queue.first_report(known.uid, reason):
            what = "pod not deleted" if reason == "FailedDelete" else "pod refused"
            _LOG.warning(what, extra={"job": known.key, "pod": pod, "reason": reason, "why": message})
            self.record_event(RecordEvent(known.uid, "Warning", reason, message))
