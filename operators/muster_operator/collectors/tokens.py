"""The token with which a job's collectors are polled, and the Secret that brings it into the pods.

Every token is derived from one key and the job's uid, so that an operator that takes over knows all of them without the
right to read users' Secrets.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster.api import spec
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.resources import SECRETS
from muster_operator.cache.cached_job import CachedJob
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector, secret_manifest

_KEY = "key"
_KEY_BYTES = 32


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


@dataclass(slots=True)
class SharedKey:
    """A random key shared by all replicas of an operator, in Secret `name` of the operator's namespace; created on
    first use. Values derived from it cannot be guessed or forged without it."""

    api: AsyncKubeClient
    namespace: str
    name: str
    _bytes: bytes | None = None

    async def load(self) -> None:
        """Read the key, or create it. Raises ApiError that names the Secret."""
        if self._bytes is not None:
            return
        path = SECRETS.path(self.namespace, self.name)
        try:
            self._bytes = await self._read(path) or await self._create(path)
        except ApiError as error:
            where = f"Secret {self.namespace}/{self.name}, the key of collector tokens"
            raise ApiError(error.code, error.reason, f"{where}: {error.message or error}") from error

    async def find(self) -> None:
        """Read the key as a standby may, which creates nothing. Raises ApiError, 404 if there is none yet."""
        if self._bytes is None:
            path = SECRETS.path(self.namespace, self.name)
            self._bytes = await self._read(path)
            if self._bytes is None:
                raise ApiError(404, "NotFound", f"Secret {self.namespace}/{self.name}, the key of collector tokens")

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self._bytes = None

    @property
    def loaded(self) -> bytes | None:
        """The key; None before `load`."""
        return self._bytes

    async def _read(self, path: str) -> bytes | None:
        try:
            found = msgspec.json.decode(await self.api.get(path), type=_Secret)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        try:
            key = base64.b64decode(found.data.get(_KEY, ""), validate=True)
        except ValueError:
            key = b""
        if len(key) < _KEY_BYTES:
            wrong = (
                f"{_KEY} must have at least {_KEY_BYTES} bytes; delete the Secret, and the operator creates it again"
            )
            raise ApiError(422, "Invalid", wrong)
        return key

    async def _create(self, path: str) -> bytes:
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "type": "Opaque",
            "immutable": True,
            "data": {_KEY: base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()},
        }
        await self.api.create_if_absent(SECRETS.path(self.namespace), document)
        key = await self._read(path)
        if key is None:
            raise ApiError(404, "NotFound", "deleted directly after its creation")
        return key


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
        """The token of a job. Requires `load`."""
        assert self.key.loaded is not None, "the key is not loaded"
        return derive_token(self.key.loaded, uid)

    async def ensure(self, known: CachedJob) -> None:
        """Create the job's Secret if any of its pods has a collector: those pods mount it. Raises as
        `AsyncKubeClient.post` does."""
        attempt = known.job.status.attempt
        if self._created.get(known.uid) == attempt or not _has_any_collector(known.job.spec, self.config):
            return
        await self.load()
        manifest = secret_manifest(known.job, self.token(known.uid))
        await self.api.create_if_absent(SECRETS.path(known.namespace), manifest)
        if len(self._created) >= _MAX_ENTRIES:
            self._created.clear()  # costs only repeated requests
        self._created[known.uid] = attempt


def _has_any_collector(job_spec: spec.TrainingJobSpec, config: CollectorSidecarConfig) -> bool:
    return any(has_collector(job_spec, role.name, 0, config) for role in job_spec.roles)
