"""Native gang scheduling, where enabled: a PodGroup is created before the first pod of an attempt of more than one pod,
and its pods name it.

Muster decides when and where gangs start; the PodGroup makes kube-scheduler bind all pods of a gang or none, so that
constraints known only to kube-scheduler (ports, volumes, pod anti-affinity) never leave a gang partly bound.

Each Kubernetes release serves another version of the API, or none. The newest one is found by discovery, and looked for
again when it is not served any more: the API server may be upgraded while the operator runs. Where none is served,
gangs run without PodGroups. So does the rest of an attempt that began without: a PodGroup waits for all pods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.cluster import RecordEvent
from muster.kube.async_client import ApiError, AsyncKubeClient, is_server_wide
from muster.kube.resources import POD_GROUPS, Resource
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.pods import PodCache
from muster_operator.pod_builder.job_objects import pod_group_manifest, pod_group_name

_LOG = logging.getLogger("muster.operator")
_MAX_ENTRIES = 50_000  # of what was created before an attempt
_REDISCOVERY_S = 60.0  # while no version is served
_GROUP = POD_GROUPS[0].group
_NOT_SERVED = (
    f"started without a PodGroup: the API server serves no podgroups of {_GROUP} in version"
    f" {' or '.join(resource.version for resource in POD_GROUPS)}"
)


class _ApiResource(msgspec.Struct):
    name: str


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource] = []


@dataclass(slots=True)
class PodGroups:
    """PodGroups of all jobs. `on_missing` is called for each attempt of a gang that starts without one."""

    api: AsyncKubeClient
    pods: PodCache
    record_event: Callable[[RecordEvent], None]
    on_missing: Callable[[], None]
    clock: Callable[[], float] = time.monotonic
    _groups: dict[str, tuple[int, str]] = field(default_factory=dict)  # by job: attempt, and name of its PodGroup or ""
    _served: Resource | None = None  # the newest version
    _discovered_at: float = float("-inf")
    _discovery: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ensure(self, known: CachedJob) -> None:
        """Create the PodGroup of the present attempt and delete that of the previous one. Raises as
        `AsyncKubeClient.post` does."""
        job, attempt = known.job, known.job.status.attempt
        if self._groups.get(known.uid, (None, None))[0] == attempt:
            return
        manifest = pod_group_manifest(job)
        began_without = self.pods.pod_group(known.uid, attempt) == ""  # before this operator led
        created = manifest is not None and not began_without and await self._create(known, manifest)
        if attempt > 0:
            await self._delete(known, pod_group_name(job.metadata.name, known.uid, attempt - 1))
        if manifest is None:
            return  # the attempt may still grow
        if len(self._groups) >= _MAX_ENTRIES:
            self._groups.clear()  # costs only repeated requests
        self._groups[known.uid] = attempt, manifest["metadata"]["name"] if created else ""

    def set_group(self, manifest: dict[str, Any], uid: str, attempt: int) -> None:
        """Set the PodGroup, if any, in the manifest of a pod."""
        of_attempt, name = self._groups.get(uid, (attempt, ""))
        if name and of_attempt == attempt:
            manifest["spec"]["schedulingGroup"] = {"podGroupName": name}

    async def _create(self, known: CachedJob, manifest: dict[str, Any]) -> bool:
        """Create a PodGroup in the newest version that is served; False where none is."""
        resource = await self._find()
        try:
            if resource is not None:
                await self._post(known, resource, manifest)
                return True
        except ApiError as error:
            if error.code != 404:
                raise
            newer = await self._find(instead_of=resource)
            if newer == resource:
                raise  # the namespace does not exist
            if newer is not None:
                await self._post(known, newer, manifest)
                return True
        self.on_missing()
        self.record_event(RecordEvent(known.uid, "Warning", "PodGroupNotServed", _NOT_SERVED))
        return False

    async def _post(self, known: CachedJob, resource: Resource, manifest: dict[str, Any]) -> None:
        document = {"apiVersion": resource.api_version, "kind": resource.kind, **manifest}
        await self.api.create_if_absent(resource.path(known.namespace), document)

    async def _delete(self, known: CachedJob, name: str) -> None:
        """Delete a PodGroup. One that the API server refuses to delete is deleted with its job."""
        if (resource := await self._find()) is None:
            return
        try:
            await self.api.delete(resource.path(known.namespace, name), b"{}")
        except ApiError as error:
            if is_server_wide(error):
                raise
            if error.code not in (404, 409):
                _LOG.warning("PodGroup not deleted", extra={"pod_group": name, "why": str(error)})

    async def _find(self, instead_of: Resource | None = None) -> Resource | None:
        """The newest version that is served, from the last discovery. `instead_of`: one that answered 404; unless
        another one was found meanwhile, the API server is asked again."""
        async with self._discovery:
            expired = self._served is None and self.clock() >= self._discovered_at + _REDISCOVERY_S
            refuted = instead_of is not None and self._served == instead_of
            if expired or refuted:
                self._served = await self._discover()
                self._discovered_at = self.clock()
            return self._served

    async def _discover(self) -> Resource | None:
        for resource in POD_GROUPS:
            try:
                answer = await self.api.get(f"/apis/{resource.group}/{resource.version}")
            except ApiError as error:
                if error.code != 404:
                    raise
                continue
            if resource.plural in {one.name for one in msgspec.json.decode(answer, type=_ApiResourceList).resources}:
                _LOG.info("PodGroups are served", extra={"version": resource.api_version})
                return resource
        _LOG.warning("PodGroups are not served; gangs start without")
        return None
