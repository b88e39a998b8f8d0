"""The address and credentials of the API server, from a kubeconfig or from a pod's service account.

Certificates and tokens are read with the standard library, because importing the official client takes over a second.
The official client is used only for credential plugins (`exec`, `auth-provider`).
"""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

from muster.errors import ClusterError, NotFound

DEFAULT_NAMESPACE = "default"
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_AUTH_KEYS = ("exec", "auth-provider")


@dataclass(frozen=True, slots=True)
class KubeContext:
    """A kubeconfig file (None: $KUBECONFIG, else ~/.kube/config) and a context in it (None: the current context)."""

    kubeconfig: str | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Connection settings. `auth_headers` returns the headers of the login; it is called again and again, since tokens
    expire, and raises `ClusterError` Unauthorized where they cannot be read. `tls` None means http.

    `server_name` is the name in the server's certificate if it is not the host of `server`. `impersonation_headers` may
    contain a name more than once.
    """

    server: str
    tls: ssl.SSLContext | None
    auth_headers: Callable[[], Mapping[str, str]]
    namespace: str = DEFAULT_NAMESPACE
    context_name: str = ""
    server_name: str | None = None
    proxy_url: str | None = None
    impersonation_headers: tuple[tuple[str, str], ...] = ()


def load_config(context: KubeContext, environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """Read the kubeconfig, or the pod's service account if there is none. Raises `ClusterError` KubeconfigNotFound or
    InvalidKubeconfig, `NotFound` ContextNotFound."""
    paths = _kubeconfig_paths(context, environ)
    if paths:
        return _config_from_kubeconfig(_Kubeconfig.load(paths), context.context)
    if context.context is None and _is_in_cluster(environ):
        return _service_account_config(environ)
    raise ClusterError(
        "no kubeconfig found; use --kubeconfig FILE or set KUBECONFIG",
        reason="KubeconfigNotFound",
    )


def load_in_cluster_config(environ: Mapping[str, str] = os.environ) -> ClientConfig:
    """The pod's service account. Raises `ClusterError` KubeconfigNotFound outside of a cluster."""
    if not _is_in_cluster(environ):
        raise ClusterError(
            "no service account found; outside of a cluster pass --kubeconfig FILE", reason="KubeconfigNotFound"
        )
    return _service_account_config(environ)


def _kubeconfig_paths(context: KubeContext, environ: Mapping[str, str]) -> list[Path]:
    """The existing files. A given file must exist; of several in KUBECONFIG some may be missing."""
    if context.kubeconfig is not None:
        path = Path(context.kubeconfig).expanduser()
        if not path.is_file():
            message = f"--kubeconfig: must be an existing file; got {path}"
            raise ClusterError(message, field="--kubeconfig", reason="KubeconfigNotFound")
        return [path]
    named = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    found = [path for path in named or [Path("~/.kube/config").expanduser()] if path.is_file()]
    if named and not found:
        raise ClusterError(
            f"KUBECONFIG: must name an existing file; got {environ['KUBECONFIG']}",
            field="KUBECONFIG",
            reason="KubeconfigNotFound",
        )
    return found


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    """Several files merged: the first entry of a name wins."""

    paths: list[Path]
    current: str
    contexts: dict[str, dict[str, Any]]
    clusters: dict[str, dict[str, Any]]
    users: dict[str, dict[str, Any]]

    @classmethod
    def load(cls, paths: list[Path]) -> _Kubeconfig:
        read = cls(paths, "", {}, {}, {})
        current = ""
        for path in paths:
            try:
                document = yaml.safe_load(path.read_text()) or {}
                current = current or document.get("current-context") or ""
                for kind, into in (("context", read.contexts), ("cluster", read.clusters), ("user", read.users)):
                    for entry in document.get(f"{kind}s") or ():
                        into.setdefault(entry["name"], {**(entry.get(kind) or {}), "": path.parent})
            except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
                message = f"{path} is not a valid kubeconfig: {_parse_error_text(error)}"
                raise ClusterError(message, reason="InvalidKubeconfig") from error
        return cls(paths, current, read.contexts, read.clusters, read.users)

    def resolve_context(self, context_name: str | None) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(name, context, its cluster, its user)."""
        name, files = context_name or self.current, os.pathsep.join(map(str, self.paths))
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            message = f"context {name!r} does not exist in {files}" if name else f"{files} has no current context"
            raise NotFound(f"{message}; existing contexts: {known}", field="--context", reason="ContextNotFound")
        context = self.contexts[name]
        cluster = self.clusters.get(context.get("cluster", ""))
        if cluster is None or not cluster.get("server"):
            message = f"{files}: context {name!r} names cluster {context.get('cluster')!r}, which has no server"
            raise ClusterError(message, reason="InvalidKubeconfig")
        user = context.get("user")
        if user and user not in self.users:
            message = f"{files}: context {name!r} names user {user!r}, which does not exist"
            raise ClusterError(message, reason="InvalidKubeconfig")
        return name, context, cluster, self.users.get(user or "", {})


def _parse_error_text(error: Exception) -> str:
    """The error without the excerpt of the file that YAML errors show: it may contain a token."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error)


def _config_from_kubeconfig(config: _Kubeconfig, context_name: str | None) -> ClientConfig:
    name, context, cluster, user = config.resolve_context(context_name)
    try:
        tls, headers = (
            _login_by_official_client(config.paths, name)
            if any(key in user for key in _PLUGIN_AUTH_KEYS)
            else (_tls_context(cluster, user), _auth_header_source(user))
        )
        impersonation_headers = _impersonation_headers(user)
        proxy_url = _proxy_url(cluster)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        message = f"{os.pathsep.join(map(str, config.paths))}: context {name!r}: {error}"
        raise ClusterError(message, reason="InvalidKubeconfig") from error
    server = str(cluster["server"]).rstrip("/")
    return ClientConfig(
        server=server,
        tls=tls if server.startswith("https") else None,
        auth_headers=headers,
        namespace=context.get("namespace") or DEFAULT_NAMESPACE,
        context_name=name,
        server_name=cluster.get("tls-server-name") or None,
        proxy_url=proxy_url,
        impersonation_headers=impersonation_headers,
    )


def _is_in_cluster(environ: Mapping[str, str]) -> bool:
    return (SERVICE_ACCOUNT_DIR / "token").exists() and "KUBERNETES_SERVICE_HOST" in environ


def _service_account_config(environ: Mapping[str, str]) -> ClientConfig:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    name = f"[{host}]" if ":" in host else host
    return ClientConfig(
        server=f"https://{name}:{port}",
        tls=ssl.create_default_context(cafile=str(SERVICE_ACCOUNT_DIR / "ca.crt")),
        auth_headers=_token_file_source(SERVICE_ACCOUNT_DIR / "token"),
        namespace=(SERVICE_ACCOUNT_DIR / "namespace").read_text().strip() or DEFAULT_NAMESPACE,
        context_name="in this pod",
    )


def _proxy_url(cluster: Mapping[str, Any]) -> str | None:
    url = cluster.get("proxy-url")
    if url and (urlsplit(str(url)).scheme != "http" or not urlsplit(str(url)).hostname):
        raise ValueError("proxy-url: must be a URL that begins with http://")  # not shown: it may contain a password
    return str(url) if url else None


def _tls_context(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    data, file = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    tls = ssl.create_default_context(
        cafile=None if data or not file else str(cluster[""] / file),
        cadata=_decode_base64(data).decode() if data else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_inline_or_file(user, name) for name in ("client-certificate", "client-key"))
    if certificate:
        with tempfile.NamedTemporaryFile() as both:  # only its owner can read it, and ssl takes files alone
            both.write(certificate + b"\n" + (key or b""))  # a file of the certificate may hold the key, too
            both.flush()
            tls.load_cert_chain(both.name, password=_refuse_encrypted_key)
    return tls


def _refuse_encrypted_key() -> str:
    """Called by ssl for the passphrase of an encrypted key; without it, OpenSSL would ask for it on the terminal."""
    raise ValueError("client-key: must not be encrypted with a passphrase; decrypt it: openssl pkey -in KEY -out NEW")


def _inline_or_file(user: Mapping[str, Any], name: str) -> bytes | None:
    """A user's value from the kubeconfig itself, or from the file it names."""
    if user.get(f"{name}-data"):
        return _decode_base64(user[f"{name}-data"])
    return (user[""] / user[name]).read_bytes() if user.get(name) else None


def _decode_base64(text: str) -> bytes:
    return base64.b64decode("".join(str(text).split()), validate=True)


def _auth_header_source(user: Mapping[str, Any]) -> Callable[[], Mapping[str, str]]:
    fixed = {}
    if user.get("tokenFile"):  # takes precedence, as in kubectl
        return _token_file_source(user[""] / user["tokenFile"])
    if user.get("token"):
        return lambda: _authorization(f"Bearer {user['token']}")
    if user.get("username"):
        both = f"{user['username']}:{user.get('password', '')}".encode()
        fixed["Authorization"] = f"Basic {base64.b64encode(both).decode()}"
    return lambda: fixed


def _token_file_source(path: Path) -> Callable[[], Mapping[str, str]]:
    """Reads the token for each request: tokens of service accounts expire."""

    def headers() -> Mapping[str, str]:
        try:
            token = path.read_text()
        except (OSError, ValueError) as error:
            raise ClusterError(f"cannot read the token file {path}: {error}", reason="Unauthorized") from error
        return _authorization(f"Bearer {token.strip()}")

    return headers


def _authorization(value: str) -> Mapping[str, str]:
    """The header. A value that is no header is refused here, because errors of HTTP libraries show it."""
    if not value.strip().isprintable():
        raise ClusterError("the token must be one line without control characters", reason="Unauthorized")
    return {"Authorization": value.strip()}


def _impersonation_headers(user: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The headers of `as`, `as-uid`, `as-groups` and `as-user-extra`. Raises ValueError if they are invalid, and if
    `as` is missing: the API server would ignore the others."""
    headers = [("Impersonate-User", user["as"])] if user.get("as") else []
    headers += [("Impersonate-Uid", user["as-uid"])] if user.get("as-uid") else []
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    if not isinstance(groups, list):
        raise ValueError("as-groups: must be a list of groups")
    if not isinstance(extra, dict) or not all(isinstance(values, list) for values in extra.values()):
        raise ValueError("as-user-extra: must be a mapping of lists")
    headers += [("Impersonate-Group", group) for group in groups]
    headers += [
        (f"Impersonate-Extra-{_escape_header_key(str(key))}", value)
        for key, values in extra.items()
        for value in values
    ]
    for name, value in headers:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{name}: must be a string without control characters; got {value!r}")
    if headers and not user.get("as"):
        raise ValueError("as-groups, as-uid and as-user-extra require `as`")
    return tuple(headers)


def _escape_header_key(key: str) -> str:
    """The key as client-go escapes it in a header name."""
    return quote(key, safe="!#$&'*+-.^_`|~")


def _login_by_official_client(
    paths: list[Path], context: str
) -> tuple[ssl.SSLContext, Callable[[], Mapping[str, str]]]:
    try:
        from kubernetes import client, config
    except ImportError as error:
        install = "pip install '/path/to/muster[kubernetes]' from a clone of Muster"
        message = f"context {context!r} uses a credential plugin, which needs the official Kubernetes client: {install}"
        raise ClusterError(message, reason="MissingKubernetesClient") from error
    settings = client.Configuration()
    try:
        config.load_kube_config(
            os.pathsep.join(map(str, paths)), context, client_configuration=settings, persist_config=False
        )
    except config.ConfigException as error:
        raise ClusterError(f"context {context!r}: cannot log in: {error}", reason="Unauthorized") from error
    tls = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
    if not settings.verify_ssl:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    if settings.cert_file:
        tls.load_cert_chain(settings.cert_file, settings.key_file or None, password=_refuse_encrypted_key)

    def headers() -> Mapping[str, str]:
        values = settings.auth_settings().values()
        value = next((one["value"] for one in values if one["key"].lower() == "authorization"), None)
        return {} if value is None else _authorization(value)

    return tls, headers
