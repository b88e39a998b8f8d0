"""The documents of the record as ConfigMaps: names, manifests, decoding."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from muster.errors import ClusterError
from muster.kube.async_client import AsyncKubeClient
from muster.kube.resources import CONFIG_MAPS
from muster.usage.record import EncodedDocument, UsageDocument, decode_jobs, decode_totals
from muster.usage.totals import UsageTotals

MAX_BYTES = 700_000
"""Of both parts: base64 makes a third more of them, and a ConfigMap has at most 1 MiB."""
LABEL = "muster.dev/usage"
TOTALS, JOBS = "totals.json.gz", "jobs.json.gz"
_PAGE = "20"


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_token: str = msgspec.field(default="", name="continue")


class _ConfigMap(msgspec.Struct):
    metadata: _Meta
    binary_data: dict[str, str] | None = msgspec.field(default=None, name="binaryData")


class _ConfigMapList(msgspec.Struct):
    items: list[_ConfigMap] = []
    metadata: _Meta = _Meta()


_decoder = msgspec.json.Decoder(_ConfigMapList)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A ConfigMap of the record. `jobs`: the encoded numbers of jobs, which only the newest one needs."""

    day: int
    number: int
    resource_version: str
    totals: UsageTotals
    jobs: bytes | None

    @property
    def key(self) -> tuple[int, int]:
        """Sorts the newest last."""
        return self.day, self.number

    def document(self) -> UsageDocument:
        """The document. Raises `ClusterError` if its jobs cannot be read."""
        parts = ({}, {}, {}) if self.jobs is None else decode_jobs(self.jobs)
        return UsageDocument(self.day, self.number, self.totals, *parts)


@dataclass(frozen=True, slots=True)
class ConfigMapNames:
    """Names of the ConfigMaps of one operator, e.g. muster-operator-usage-2026-11-23-0."""

    namespace: str
    operator: str

    def name(self, day: int, number: int) -> str:
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)
        return f"{self.operator}-usage-{date:%Y-%m-%d}-{number}"

    def key(self, name: str) -> tuple[int, int] | None:
        """(day, number) of a name; None for another one."""
        found = re.fullmatch(rf"{re.escape(self.operator)}-usage-(\d{{4}}-\d\d-\d\d)-(\d{{1,6}})", name)
        if found is None:
            return None
        try:
            date = datetime.strptime(found[1], "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            return None
        return (date - datetime(1970, 1, 1, tzinfo=UTC)).days, int(found[2])

    def path(self, day: int, number: int) -> str:
        return CONFIG_MAPS.path(self.namespace, self.name(day, number))

    def manifest(self, encoded: EncodedDocument) -> dict[str, Any]:
        """The new ConfigMap of a document."""
        one = encoded.document
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.name(one.day, one.number),
                "namespace": self.namespace,
                "labels": {LABEL: self.operator},
            },
            "binaryData": binary_data(encoded),
        }

    async def read(self, api: AsyncKubeClient) -> list[StoredDocument]:
        """All documents, the newest last. Raises `ClusterError` if one cannot be read."""
        path, found = CONFIG_MAPS.path(self.namespace), list[StoredDocument]()
        params = {"labelSelector": f"{LABEL}={self.operator}", "limit": _PAGE}
        while True:
            answer = await api.get(path, params)
            try:
                page = _decoder.decode(answer)
            except ValueError as error:
                raise ClusterError(f"usage record: the answer is not a list of ConfigMaps: {answer[:200]!r}") from error
            for item in page.items:
                key = self.key(item.metadata.name)
                if key is not None:
                    found.append(_stored(key, item))
            if not page.metadata.continue_token:
                return sorted(found, key=lambda one: one.key)
            params["continue"] = page.metadata.continue_token


def binary_data(encoded: EncodedDocument) -> Mapping[str, str]:
    """The field of this name."""
    return {
        TOTALS: base64.b64encode(encoded.totals).decode(),
        JOBS: base64.b64encode(encoded.jobs).decode(),
    }


def _stored(key: tuple[int, int], item: _ConfigMap) -> StoredDocument:
    data = item.binary_data or {}
    try:
        totals = decode_totals(base64.b64decode(data.get(TOTALS, ""), validate=True))
        jobs = base64.b64decode(data[JOBS], validate=True) if JOBS in data else None
    except (ClusterError, binascii.Error) as error:
        raise ClusterError(f"usage record: ConfigMap {item.metadata.name} cannot be read: {error}") from error
    return StoredDocument(*key, item.metadata.resource_version, totals, jobs)
