"""The key from which the tokens of collectors and the signatures of pods are derived: one Secret of the operator's
namespace, so that an operator that takes over knows all of them."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.resources import SECRETS

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
            where = f"Secret {self.namespace}/{self.name}, the operator's key"
            raise ApiError(error.code, error.reason, f"{where}: {error.message or error}") from error

    async def find(self) -> None:
        """Read the key as a standby may, which creates nothing. Raises ApiError, 404 if there is none yet."""
        if self._bytes is None:
            path = SECRETS.path(self.namespace, self.name)
            self._bytes = await self._read(path)
            if self._bytes is None:
                raise ApiError(404, "NotFound", f"Secret {self.namespace}/{self.name}, the operator's key")

    def clear(self) -> None:
        """Forget the key: another leader may have created a new one."""
        self._bytes = None

    @property
    def loaded(self) -> bytes | None:
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
