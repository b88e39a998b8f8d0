"""The token that a job's collectors are asked with, and the Secret that brings it into the pods.

Every token follows from one key and the job's uid, so that an operator that takes over knows them all without the right
to read a single Secret of a user. The key lies in one Secret of the operator's own namespace; the first operator that
needs it makes it.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from muster import spec
from muster_operator.kube.api import METADATA_ONLY, Api, ApiError
from muster_operator.kube.resources import SECRETS
from muster_operator.manifests.collector import CollectorChoices, has_collector, secret_manifest
from muster_operator.sight.jobs import KnownJob

_KEY = "key"
_KEY_BYTES = 32
_KNOWN_MOST = 50_000


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


def token_of(key: bytes, uid: str) -> str:
    """The token of one job: nobody without the key can tell it, nor from it that of another job."""
    digest = hmac.digest(key, f"muster-collector/{uid}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(slots=True)
class Tokens:
    """Tokens of jobs, and their Secrets. `key_name` is the Secret of the key, in `namespace`."""

    api: Api
    choices: CollectorChoices
    namespace: str
    key_name: str
    _key: bytes | None = None
    _made: dict[str, int] = field(default_factory=dict)  # by job: the attempt before which its Secret was there

    async def load(self) -> None:
        """Read the key; make it if there is none. Raises ApiError that names the Secret."""
        if self._key is not None:
            return
        path = SECRETS.path(self.namespace, self.key_name)
        try:
            self._key = await self._read(path) or await self._make(path)
        except ApiError as error:
            where = f"Secret {self.namespace}/{self.key_name}, the key of collectors"
            raise ApiError(error.code, error.reason, f"{where}: {error.message or error}") from error

    def forget(self) -> None:
        """Somebody else has led since, and may have made another key."""
        self._key = None
        self._made.clear()

    def token(self, uid: str) -> str:
        """The token of a job. Only after `load`."""
        assert self._key is not None, "the key is not loaded"
        return token_of(self._key, uid)

    async def ensure(self, known: KnownJob) -> None:
        """The job's Secret is there, if any pod of it has a collector: pods wait for it. Raises as `Api.post` does."""
        attempt = known.job.status.attempt
        if self._made.get(known.uid) == attempt or not _any_collector(known.job.spec, self.choices):
            return
        await self.load()
        body = msgspec.json.encode(secret_manifest(known.job, self.token(known.uid)))
        try:
            await self.api.post(SECRETS.path(known.namespace), body, accept=METADATA_ONLY)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        if len(self._made) >= _KNOWN_MOST:
            self._made.clear()  # only costs asking again
        self._made[known.uid] = attempt

    async def _read(self, path: str) -> bytes | None:
        try:
            found = msgspec.json.decode(await self.api.read(path), type=_Secret)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        try:
            key = base64.b64decode(found.data.get(_KEY, ""), validate=True)
        except ValueError:
            key = b""
        if len(key) < _KEY_BYTES:
            wrong = f"it has no {_KEY} of {_KEY_BYTES} bytes or more; delete it, and the operator makes another"
            raise ApiError(422, "Invalid", wrong)
        return key

    async def _make(self, path: str) -> bytes:
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.key_name, "namespace": self.namespace},
            "type": "Opaque",
            "immutable": True,
            "data": {_KEY: base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()},
        }
        try:
            await self.api.post(SECRETS.path(self.namespace), msgspec.json.encode(document), accept=METADATA_ONLY)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        key = await self._read(path)
        if key is None:
            raise ApiError(404, "NotFound", "it was made and is gone again")
        return key


def _any_collector(wanted: spec.TrainingJobSpec, choices: CollectorChoices) -> bool:
    return any(has_collector(wanted, role.name, 0, choices) for role in wanted.roles)
