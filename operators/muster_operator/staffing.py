"""Creates and stops the pods of a gang, and makes what has to stand before its first pod.

What the API server refuses here keeps this job waiting and nobody else: see `refusals`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from muster.cluster import CreatePod, DeletePod, RecordEvent
from muster.errors import InvalidSpec
from muster_operator.collectors.tokens import Tokens
from muster_operator.doubts import Doubts
from muster_operator.dryrun import DryRuns
from muster_operator.kube.api import METADATA_ONLY, Api, ApiError
from muster_operator.kube.resources import PODS, SERVICES
from muster_operator.labels import ADMITTED
from muster_operator.manifests.pods import PodChoices, pod_manifest
from muster_operator.manifests.services import needs_service, service_manifest
from muster_operator.podgroups import PodGroups
from muster_operator.refusals import FORBIDDEN, Refusals, concerns_everybody
from muster_operator.sight.known_job import KnownJob
from muster_operator.sight.known_pod import created_pod
from muster_operator.sight.shapes import PodMeta
from muster_operator.sight.world import Sight
from muster_operator.sight.written import written

_LOG = logging.getLogger("muster.operator")
_SERVED_MOST = 50_000
_AT_ONCE = 128  # pods whose manifests are made, more than there are calls on their way
Made: TypeAlias = PodMeta | Literal["taken", "refused"]
"""What was created; or that another has its name, or that it is refused."""


@dataclass(slots=True)
class Staffing:
    """Writes pods to the API server, and tells `sight` what was acknowledged."""

    api: Api
    sight: Sight
    dry_runs: DryRuns
    doubts: Doubts
    choices: PodChoices
    record: Callable[[RecordEvent], None]
    refusals: Refusals
    tokens: Tokens | None = None  # None: no pod has a collector
    groups: PodGroups | None = None  # None: kube-scheduler binds each pod by itself
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _served: dict[str, int] = field(default_factory=dict)  # by job: the attempt before which its Service was there

    async def carry_out(self, uid: str, writes: Sequence[CreatePod | DeletePod], later: set[str]) -> None:
        """All of one job. What is refused is noted in `later`; raises ClusterError for what concerns everybody."""
        known = self.sight.jobs.known(uid)
        if known is None:
            return
        created = next((one for one in writes if isinstance(one, CreatePod)), None)
        if created is not None and not await self._before_pods(known, created, later):
            return
        if created is not None and self.refusals.lasts(uid):
            await self._pod(known, created, later)  # a webhook may take its time with each: one of them tells enough
            writes = [one for one in writes if one is not created and not (uid in later and isinstance(one, CreatePod))]
        if len(writes) == 1:
            await self._pod(known, writes[0], later)
            return
        results = await asyncio.gather(*(self._pod(known, one, later) for one in writes), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _pod(self, known: KnownJob, write: CreatePod | DeletePod, later: set[str]) -> None:
        await (self._create(known, write, later) if isinstance(write, CreatePod) else self._delete(known, write, later))

    async def _before_pods(self, known: KnownJob, created: CreatePod, later: set[str], *, grouped: bool = True) -> bool:
        """What has to be there before a gang's first pod is there; False where it is refused."""
        try:
            await self._service(known)
            if self.tokens is not None:
                await self.tokens.ensure(known)
            if self.groups is not None and grouped:
                await self.groups.ensure(known)
        except ApiError as error:
            if concerns_everybody(error):
                raise
            self._not_created(known, created, error, later)
            return False
        return True

    async def _service(self, known: KnownJob) -> None:
        """Asked for before each attempt: somebody may have deleted it, and no attempt would ever meet."""
        attempt = known.job.status.attempt
        if self._served.get(known.uid) == attempt or not needs_service(known.job):
            return
        body = msgspec.json.encode(service_manifest(known.job))
        try:
            await self.api.post(SERVICES.path(known.namespace), body, accept=METADATA_ONLY)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        if len(self._served) >= _SERVED_MOST:
            self._served.clear()  # only costs asking again
        self._served[known.uid] = attempt

    async def admit(self, known: KnownJob, write: CreatePod, told: str, later: set[str]) -> Made:
        """Create the only pod of a gang, which tells (`told`) that the gang is admitted. Raises as `carry_out` does."""
        later_stay = known.job.status.attempt > 0  # an earlier one may have had a group, which goes
        if not await self._before_pods(known, write, later, grouped=later_stay):
            return "refused"
        return await self._create(known, write, later, told)

    async def stop(self, known: KnownJob, pod: PodMeta) -> None:
        """Take back a pod that was just created. Raises ClusterError for what concerns everybody."""
        options = {"preconditions": {"uid": pod.uid}}
        try:
            await self.api.delete(PODS.path(known.namespace, pod.name), msgspec.json.encode(options))
        except ApiError as error:
            if concerns_everybody(error):
                raise

    def not_admitted(self, known: KnownJob, pod: str, why: str, later: set[str]) -> None:
        """Its pod is no use; somebody may mend that."""
        self._note(known.uid, ApiError(422, "", why), later)
        self._tell(known, "PodRejected", why, pod)

    async def _create(self, known: KnownJob, write: CreatePod, later: set[str], told: str = "") -> Made:
        if write.role not in known.templates:
            return "refused"
        path = PODS.path(known.namespace, write.name)
        try:
            answer = await self.doubts.watch_over(
                path,
                lambda: self._post(known, write, told),
                lambda: self.sight.jobs.known(known.uid) is not None,  # or it was deleted meanwhile
            )
        except ApiError as error:
            if error.reason == "AlreadyExists":
                return "taken"
            if concerns_everybody(error):
                raise
            self._not_created(known, write, error, later)
            return "refused"
        meta = written(answer)
        request = known.templates[write.role].request
        self.sight.pods.created(created_pod(meta, known.uid, write.node, request))
        return meta

    async def _post(self, known: KnownJob, write: CreatePod, told: str) -> bytes:
        """Create the pod. Its manifest is made when its turn comes: those of a large gang together may be very long."""
        async with self._turn:
            document = await self.dry_runs.documents.read(known, write.role)
            flavor = self.sight.flavors.get(write.flavor)
            tolerations = flavor.spec.tolerations if flavor is not None else []
            try:
                manifest = pod_manifest(known.job, document, write, tolerations, self.choices)
            except InvalidSpec as error:
                raise ApiError(422, "", str(error)) from error
            if told:
                manifest["metadata"]["annotations"][ADMITTED] = told
            if self.groups is not None:
                self.groups.join(manifest, known.uid, write.attempt)
            return await self.api.post(PODS.path(known.namespace), msgspec.json.encode(manifest), accept=METADATA_ONLY)

    async def _delete(self, known: KnownJob, write: DeletePod, later: set[str]) -> None:
        pod = self.sight.pods.of_job(known.uid, write.name)
        if pod is None:
            self.sight.pods.forget(known.uid, write.name)
            return
        grace_s = 0 if write.force else round(write.grace_s)
        options = {"gracePeriodSeconds": grace_s, "preconditions": {"uid": pod.uid}}
        path = PODS.path(known.namespace, write.name)
        try:
            await self.api.delete(path, msgspec.json.encode(options))
        except ApiError as error:
            if error.code in (404, 409):  # there is nothing of that name and uid any more, as the watch will tell
                self.sight.pods.deleted(pod)
                return
            if concerns_everybody(error):
                raise
            self._not_deleted(known, write, error, later)
            return
        self.sight.pods.deleted(pod)

    # ---- what is refused

    def _not_created(self, known: KnownJob, write: CreatePod, error: ApiError, later: set[str]) -> None:
        """A pod, or what has to be there before it. What is refused as it is, and what goes on failing, keeps others
        with the same template from being admitted in vain, until a dry run says otherwise."""
        why = error.message or str(error)
        self._note(known.uid, error, later)
        if error.code not in FORBIDDEN and not self.refusals.lasts(known.uid):
            return  # over in a moment, mostly
        if error.code != 409:  # as it is where many pods want a part of one quota at a time
            self.dry_runs.refused(known, write.role, why)
        self._tell(known, "PodRejected", why, write.name)

    def _not_deleted(self, known: KnownJob, write: DeletePod, error: ApiError, later: set[str]) -> None:
        why = error.message or str(error)
        self._note(known.uid, error, later)
        self._tell(known, "PodNotDeleted", f"pod {write.name} cannot be deleted: {why}", write.name)

    def _note(self, uid: str, error: ApiError, later: set[str]) -> None:
        if uid not in later:
            later.add(uid)
            self.refusals.note(uid, error.code in FORBIDDEN)

    def _tell(self, known: KnownJob, reason: str, why: str, pod: str) -> None:
        if self.refusals.is_news(known.uid, reason):
            _LOG.warning("pod refused", extra={"pod": pod, "reason": reason, "why": why})
            self.record(RecordEvent(known.uid, "Warning", reason, why))
