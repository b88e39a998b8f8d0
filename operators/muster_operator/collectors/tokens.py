"""The token with which a job's collectors are polled, and the Secret that brings it into the pods.

Every token is derived from one key and the job's uid, so that an operator that takes over knows all of them without the
right to read users' Secrets.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field

from muster.api import spec
from muster.kinds.trainingjob.arrays import split_index_key
from muster.kube.async_client import AsyncKubeClient
from muster.kube.resources import SECRETS
from muster_operator.cache.cached_job import CachedJob
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector, secret_manifest
from muster_operator.shared_key import SharedKey

_MAX_ENTRIES = 50_000


def derive_token(key: bytes, uid: str) -> str:
    """The token of one job (HMAC); without the key it cannot be computed, not even from another token."""
    digest = hmac.digest(key, f"muster-collector/{uid}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(slots=True)
class CollectorTokens:
    """Tokens of jobs, and their Secrets."""

    api: AsyncKubeClient
    config: CollectorSidecarConfig
    key: SharedKey
    _created: dict[str, int] = field(default_factory=dict)  # by job: the attempt before which its Secret was created

    async def load(self) -> None:
        """Load the key. Raises as `SharedKey.load` does."""
        await self.key.load()

    async def find(self) -> None:
        """Load the key, but do not create it. Raises as `SharedKey.find` does."""
        await self.key.find()

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self.key.clear()
        self._created.clear()

    def token(self, uid: str) -> str:
        """The token of a job; all indices of an array have one. Requires `load`."""
        assert self.key.loaded is not None, "the key is not loaded"
        return derive_token(self.key.loaded, split_index_key(uid)[0])

    async def ensure(self, known: CachedJob) -> None:
        """Create the job's Secret if any of its pods has a collector: those pods mount it. Raises as
        `AsyncKubeClient.post` does."""
        uid, attempt = split_index_key(known.uid)[0], known.job.status.attempt
        if self._created.get(uid, -1) >= attempt or not _has_any_collector(known.job.spec, self.config):
            return
        await self.load()
        manifest = secret_manifest(known.job, self.token(known.uid))
        await self.api.create_if_absent(SECRETS.path(known.namespace), manifest)
        if len(self._created) >= _MAX_ENTRIES:
            self._created.clear()  # costs only repeated requests
        self._created[uid] = attempt


def _has_any_collector(job_spec: spec.TrainingJobSpec, config: CollectorSidecarConfig) -> bool:
    return any(has_collector(job_spec, role.name, 0, config) for role in job_spec.roles)
