"""Address and credentials of the API server, from a kubeconfig or from the pod's service account.

Service accounts, tokens and client certificates are read here. Everything else in a kubeconfig (exec plugins, other
authentication, proxies) is left to the official client, which is imported only then: it needs 70 MB and a second of
CPU.
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from muster.errors import ClusterError

_SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HEADER_TTL_S = 10.0  # how long a header is used before it is read again
_SUPPORTED_USER_FIELDS = frozenset(
    {"token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data"}
)
_SUPPORTED_CLUSTER_FIELDS = frozenset(
    {"server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name"}
)


@dataclass(frozen=True, slots=True)
class ApiServerEndpoint:
    """`url` without a trailing slash; `tls` is None for plain http; `authorization` returns the header or None.

    `server_name`: expected name in the certificate, if not the host of `url`.
    """

    url: str
    server_name: str | None
    tls: ssl.SSLContext | None
    authorization: Callable[[], str | None]


def load_endpoint(kubeconfig: str | None, context: str | None = None) -> ApiServerEndpoint:
    """The endpoint of a kubeconfig file, or of the pod's service account if there is no file.

    Raises ClusterError that names the file and the error.
    """
    if kubeconfig is None:
        return _in_cluster_endpoint(os.environ)
    try:
        path = Path(kubeconfig)
        cluster, user = _select_context(yaml.safe_load(path.read_text()), context)
        if cluster.keys() <= _SUPPORTED_CLUSTER_FIELDS and user.keys() <= _SUPPORTED_USER_FIELDS:
            return _kubeconfig_endpoint(cluster, user, path.parent)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ClusterError(f"kubeconfig {kubeconfig}: {error}") from error
    return _official_client_endpoint(kubeconfig, context)


def _in_cluster_endpoint(environ: Mapping[str, str]) -> ApiServerEndpoint:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port or not (_SERVICE_ACCOUNT_DIR / "token").exists():
        raise ClusterError("no service account found; outside of a cluster pass --kubeconfig FILE")
    tls = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT_DIR / "ca.crt"))
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiServerEndpoint(
        url, None, tls, _CachedHeader(lambda: f"Bearer {(_SERVICE_ACCOUNT_DIR / 'token').read_text().strip()}")
    )


# ---- kubeconfigs


def _select_context(document: Any, context: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of a context, by default the current one. Raises ValueError."""
    if not isinstance(document, dict):
        raise ValueError("must be a kubeconfig with apiVersion, clusters, contexts and users")
    name = context or document.get("current-context")
    if not name:
        raise ValueError("current-context is missing; pass --context NAME")
    chosen = _find_entry(document, "contexts", "context", name)
    cluster = _find_entry(document, "clusters", "cluster", chosen.get("cluster"))
    user = _find_entry(document, "users", "user", chosen.get("user")) if chosen.get("user") else {}
    if not cluster.get("server"):
        raise ValueError(f"cluster {chosen.get('cluster')!r} has no server; set its URL")
    return cluster, user


def _find_entry(document: Mapping[str, Any], plural: str, kind: str, name: Any) -> dict[str, Any]:
    entries = document.get(plural) or []
    for entry in entries:
        if entry.get("name") == name:
            return dict(entry.get(kind) or {})
    known = ", ".join(str(entry.get("name")) for entry in entries) or "none"
    raise ValueError(f"{kind} {name!r} does not exist; available: {known}")


def _kubeconfig_endpoint(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ApiServerEndpoint:
    url = str(cluster["server"]).rstrip("/")
    tls = None
    if url.startswith("https"):
        authority = _inline_or_file(cluster, "certificate-authority", folder)
        tls = ssl.create_default_context(cadata=authority)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        certificate, key = (
            _inline_or_file(user, "client-certificate", folder),
            _inline_or_file(user, "client-key", folder),
        )
        if certificate is not None:
            _load_client_certificate(tls, certificate, key or "")
    return ApiServerEndpoint(url, cluster.get("tls-server-name"), tls, _authorization(user, folder))


def _authorization(user: Mapping[str, Any], folder: Path) -> Callable[[], str | None]:
    if user.get("tokenFile"):  # takes precedence, as in kubectl
        path = folder / str(user["tokenFile"])
        return _CachedHeader(lambda: f"Bearer {path.read_text().strip()}")
    header = f"Bearer {user['token']}" if user.get("token") else None
    return lambda: header


def _inline_or_file(entry: Mapping[str, Any], field: str, folder: Path) -> str | None:
    """A certificate or key: inline, or in a file relative to the kubeconfig."""
    inline = entry.get(f"{field}-data")
    if inline:
        return base64.b64decode(inline).decode()
    return (folder / str(entry[field])).read_text() if entry.get(field) else None


def _load_client_certificate(tls: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load from temporary files: Python's ssl module reads certificates from files only."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(f"{certificate}\n{key}")
        file.flush()
        tls.load_cert_chain(file.name)


def _official_client_endpoint(kubeconfig: str, context: str | None) -> ApiServerEndpoint:
    try:
        from kubernetes import client, config
    except ImportError as error:
        message = "its authentication method needs the official client: pip install 'muster[kubernetes]'"
        raise ClusterError(f"kubeconfig {kubeconfig}: {message}") from error
    settings = client.Configuration()
    try:
        config.load_kube_config(kubeconfig, context, client_configuration=settings, persist_config=False)
    except config.ConfigException as error:
        raise ClusterError(f"kubeconfig {kubeconfig}: {error}") from error
    url, tls = str(settings.host).rstrip("/"), None
    if url.startswith("https"):
        tls = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
        if not settings.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            tls.load_cert_chain(settings.cert_file, settings.key_file or None)

    def header() -> str | None:
        ways = settings.auth_settings().values()
        return next((way["value"] for way in ways if way["key"].lower() == "authorization"), None)

    return ApiServerEndpoint(url, getattr(settings, "tls_server_name", None) or None, tls, _CachedHeader(header))


class _CachedHeader:
    """A header that is read again every few seconds: tokens of service accounts and plugins expire."""

    def __init__(self, fetch: Callable[[], str | None]) -> None:
        self._fetch = fetch
        self._until = 0.0
        self._value: str | None = None

    def __call__(self) -> str | None:
        now = time.monotonic()
        if now >= self._until:
            self._value, self._until = self._fetch(), now + _HEADER_TTL_S
        return self._value
