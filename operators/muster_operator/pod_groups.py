"""Native gangs, where they are asked for: a PodGroup stands before the first pod of an attempt, and its pods name it.

Muster itself decides who starts where; the PodGroup makes kube-scheduler bind all of a gang or nothing, so that a gang
that meets something only kube-scheduler knows (ports, volumes, pods that may not be neighbours) is never half bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster_operator.cache.cached_job import CachedJob
from muster_operator.kube.client import METADATA_ONLY, ApiError, ApiServerClient
from muster_operator.kube.resources import POD_GROUPS
from muster_operator.pod_builder.pod_groups import pod_group_manifest, pod_group_name

_MAX_ENTRIES = 50_000
_FEATURE_GATES = "GenericWorkload=true,GangScheduling=true"


class _ApiResource(msgspec.Struct):
    name: str


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource] = []


@dataclass(slots=True)
class PodGroups:
    """PodGroups of gangs of more than one pod."""

    api: ApiServerClient
    _groups: dict[str, tuple[int, str]] = field(default_factory=dict)  # by job: attempt, and its group's name

    async def check_served(self) -> None:
        """Raise ClusterError that says how to have the API served, where it is not."""
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
        """The group of the attempt at hand is there, that of the attempt before is not. Raises as `Api.post` does."""
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
            return  # in this attempt it may yet have more pods
        if len(self._groups) >= _MAX_ENTRIES:
            self._groups.clear()  # only costs asking again
        self._groups[known.uid] = attempt, manifest["metadata"]["name"]

    def set_group(self, manifest: dict[str, Any], uid: str, attempt: int) -> None:
        """Let a pod that is to be created name its group, if it has one."""
        of_attempt, name = self._groups.get(uid, (attempt, ""))
        if name and of_attempt == attempt:
            manifest["spec"]["schedulingGroup"] = {"podGroupName": name}

    async def _delete(self, known: CachedJob, name: str) -> None:
        try:
            await self.api.delete(POD_GROUPS.path(known.namespace, name), b"{}")
        except ApiError as error:
            if error.code not in (404, 409):
                raise
