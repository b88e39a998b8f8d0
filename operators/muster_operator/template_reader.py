"""Pod templates as users wrote them, for the creation of pods."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.objects import V1ObjectMeta
from muster.kube.resources import TRAINING_JOBS
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.templates import TemplateCache


class _Role(msgspec.Struct):
    name: str = ""
    template: msgspec.Raw = msgspec.Raw(b"{}")


class _Spec(msgspec.Struct):
    roles: list[_Role] = []


class _Job(msgspec.Struct):
    metadata: V1ObjectMeta
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Jobs(msgspec.Struct):
    items: list[_Job] = []


_jobs = msgspec.json.Decoder(_Jobs)


@dataclass(frozen=True, slots=True)
class PodTemplateReader:
    """Reads `templates` first, else the API server."""

    api: AsyncKubeClient
    templates: TemplateCache
    _read_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # all pods of a gang need the same one at once

    async def read(self, job: CachedJob, role: str) -> dict[str, Any]:
        """The template of a role, which must not be modified. Raises ApiError of the API server, ApiError 409 where the
        job was edited or deleted meanwhile, and ClusterError if there is no answer."""
        template = job.templates[role]
        document = self.templates.document(template)
        if document is not None:
            return document
        async with self._read_lock:
            document = self.templates.document(template)
            if document is None:
                text = await self._fetch(job, role)
                if hashlib.sha256(text).hexdigest() != template.text:
                    raise ApiError(409, "Conflict", f"job {job.key} was edited or deleted meanwhile")
                self.templates.store(text)
                document = self.templates.document(template)
        assert document is not None, "just stored"
        return document

    async def _fetch(self, job: CachedJob, role: str) -> bytes:
        """List the one job, because the operator has no right to `get`."""
        query = {"fieldSelector": f"metadata.name={job.job.metadata.name}"}
        answer = await self.api.get(TRAINING_JOBS.path(job.namespace), query)
        try:
            found = decode_truncated(_jobs.decode, answer).items
        except ValueError as error:
            raise ClusterError(f"list of trainingjobs: not a list: {answer[:200]!r}") from error
        roles = (one for item in found if item.metadata.uid == job.uid for one in item.spec.roles)
        return next((bytes(one.template) for one in roles if one.name == role), b"")
