"""Native gang scheduling, where enabled: a PodGroup is created before the first pod of an attempt, and its pods name
it.

Muster decides when and where gangs start; the PodGroup makes kube-scheduler bind all pods of a gang or none, so that
constraints known only to kube-scheduler (ports, volumes, pod anti-affinity) never leave a gang partly bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster.kube.async_client import METADATA_ONLY, ApiError, AsyncKubeClient
from muster.kube.resources import POD_GROUPS
from muster_operator.cache.cached_job import CachedJob
from muster_operator.pod_builder.job_objects import pod_group_manifest, pod_group_name

_MAX_ENTRIES = 50_000
_FEATURE_GATES = "GenericWorkload=true,GangScheduling=true"


class _ApiResource(msgspec.Struct):
    name: str


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource] = []


@dataclass(slots=True)
class PodGroups:
    """PodGroups of gangs of more than one pod."""

    api: AsyncKubeClient
    _groups: dict[str, tuple[int, str]] = field(default_factory=dict)  # by job: attempt, and name of its PodGroup

    async def check_served(self) -> None:
        """Raise ClusterError, with the flags that enable the API, where it is not served."""
        path = f"/apis/{POD_GROUPS.group}/{POD_GROUPS.version}"
        try:
            served = msgspec.json.decode(await self.api.get(path), type=_ApiResourceList).resources
        except ApiError as error:
            if error.code != 404:
                raise
            served = []
        if POD_GROUPS.plural not in {one.name for one in served}:
            raise ClusterError(
                f"--pod-groups: the API server does not serve {POD_GROUPS.plural} of {POD_GROUPS.api_version}."
                f" Kubernetes 1.36 does with --feature-gates={_FEATURE_GATES} (also of kube-scheduler and"
                f" kube-controller-manager) and --runtime-config={POD_GROUPS.api_version}=true;"
                " or leave out --pod-groups"
            )

    async def ensure(self, known: CachedJob) -> None:
        """Create the PodGroup of the present attempt and delete that of the previous one. Raises as
        `AsyncKubeClient.post` does."""
        job = known.job
        attempt = job.status.attempt
        if self._groups.get(known.uid, (None, None))[0] == attempt:
            return
        manifest = pod_group_manifest(job)
        if manifest is not None:
            try:
                await self.api.post(
                    POD_GROUPS.path(known.namespace), msgspec.json.encode(manifest), accept=METADATA_ONLY
                )
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
        if attempt > 0:
            await self._delete(known, pod_group_name(job.metadata.name, known.uid, attempt - 1))
        if manifest is None:
            return  # the attempt may still grow
        if len(self._groups) >= _MAX_ENTRIES:
            self._groups.clear()  # costs only repeated requests
        self._groups[known.uid] = attempt, manifest["metadata"]["name"]

    def set_group(self, manifest: dict[str, Any], uid: str, attempt: int) -> None:
        """Set the PodGroup, if any, in the manifest of a pod."""
        of_attempt, name = self._groups.get(uid, (attempt, ""))
        if name and of_attempt == attempt:
            manifest["spec"]["schedulingGroup"] = {"podGroupName": name}

    async def _delete(self, known: CachedJob, name: str) -> None:
        try:
            await self.api.delete(POD_GROUPS.path(known.namespace, name), b"{}")
        except ApiError as error:
            if error.code not in (404, 409):
                raise
