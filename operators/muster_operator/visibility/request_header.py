"""Authentication of requests that the API server passes on.

The API server authenticates the user, and names it in headers. They count only on a connection with the proxy's client
certificate: it must be issued by the CA of the ConfigMap `extension-apiserver-authentication` in kube-system, which the
TLS layer verifies, and have one of the names listed there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from muster.errors import ClusterError

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class User:
    """A user whom the API server has authenticated. `extra`: values by key, sorted."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestHeaderConfig:
    """How the API server's proxy identifies itself and the user. `client_ca`: PEM; no `allowed_names`: every name."""

    client_ca: str
    allowed_names: tuple[str, ...]
    username_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @classmethod
    def from_config_map(cls, data: Mapping[str, str]) -> RequestHeaderConfig:
        """Of the ConfigMap's data. Raises `ClusterError` AggregationDisabled if the API server has no proxy
        certificate, and InvalidAnswer for a CA that is not ASCII and values that are no
        lists of strings."""
        client_ca = data.get("requestheader-client-ca-file", "")
        names = _texts(data, "requestheader-username-headers")
        if not client_ca.strip() or not names:
            message = (
                "the API server has no aggregation layer: its flags --requestheader-client-ca-file and"
                " --requestheader-username-headers must be set"
            )
            raise ClusterError(message, reason="AggregationDisabled")
        if not client_ca.isascii():
            message = "requestheader-client-ca-file of the ConfigMap extension-apiserver-authentication must be ASCII"
            raise ClusterError(message, reason="InvalidAnswer")
        return cls(
            client_ca,
            _texts(data, "requestheader-allowed-names"),
            names,
            _texts(data, "requestheader-uid-headers"),
            _texts(data, "requestheader-group-headers"),
            _texts(data, "requestheader-extra-headers-prefix"),
        )

    def authenticate(self, certificate: Mapping[str, Any] | None, headers: Iterable[tuple[str, str]]) -> User | None:
        """The user of a request; None if it does not come from the proxy or names no user. `certificate` is the
        client's, as `ssl.SSLSocket.getpeercert` returns a verified one."""
        if not certificate or (self.allowed_names and _common_name(certificate) not in self.allowed_names):
            return None
        values: dict[str, tuple[str, ...]] = {}
        for key, value in headers:
            values[key.lower()] = (*values.get(key.lower(), ()), value)
        name = _first(values, self.username_headers)
        if not name:
            return None
        groups = tuple(value for header in self.group_headers for value in values.get(header.lower(), ()))
        extra = {
            unquote(header[len(prefix) :]): found
            for prefix in self.extra_prefixes
            for header, found in values.items()
            if header.startswith(prefix.lower())
        }
        return User(name, _first(values, self.uid_headers), groups, tuple(sorted(extra.items())))


def _first(values: Mapping[str, tuple[str, ...]], names: Iterable[str]) -> str:
    return next((value for name in names for value in values.get(name.lower(), ()) if value), "")


def _common_name(certificate: Mapping[str, Any]) -> str:
    parts = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return str(parts.get("commonName", ""))


def _texts(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key) or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        message = f"{key} of the ConfigMap extension-apiserver-authentication must be a JSON list of strings"
        raise ClusterError(message, reason="InvalidAnswer")
    return tuple(found)
