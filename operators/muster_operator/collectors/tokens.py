"""The token that a job's collectors are asked with, and the Secret that brings it into the pods.

Every token follows from one key and the job's uid, so that an operator that takes over knows them all without the right
to read a single Secret of a user.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass, field

import msgspec

from muster import spec
from muster_operator.keys import Key
from muster_operator.kube.api import METADATA_ONLY, Api, ApiError
from muster_operator.kube.resources import SECRETS
from muster_operator.manifests.collector import CollectorChoices, has_collector, secret_manifest
from muster_operator.sight.known_job import KnownJob

_KNOWN_MOST = 50_000


def token_of(key: bytes, uid: str) -> str:
    """The token of one job: nobody without the key can tell it, nor from it that of another job."""
    digest = hmac.digest(key, f"muster-collector/{uid}".encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass(slots=True)
class Tokens:
    """Tokens of jobs, and their Secrets."""

    api: Api
    choices: CollectorChoices
    key: Key
    _made: dict[str, int] = field(default_factory=dict)  # by job: the attempt before which its Secret was there

    async def load(self) -> None:
        """Have the key. Raises as `Key.load` does."""
        await self.key.load()

    def forget(self) -> None:
        """Somebody else has led since, and may have made another key."""
        self.key.forget()
        self._made.clear()

    def token(self, uid: str) -> str:
        """The token of a job. Only after `load`."""
        assert self.key.loaded is not None, "the key is not loaded"
        return token_of(self.key.loaded, uid)

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


def _any_collector(wanted: spec.TrainingJobSpec, choices: CollectorChoices) -> bool:
    return any(has_collector(wanted, role.name, 0, choices) for role in wanted.roles)
