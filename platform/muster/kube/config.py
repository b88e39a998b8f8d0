"""The address and credentials of the API server, from a kubeconfig or from a pod's service account.

Certificates and tokens are read with the standard library, because importing the official client takes over a second.
The official client is used only for credential plugins (`exec`, `auth-provider`).
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from muster.errors import ClusterError, install_extra
from muster.kube.kubeconfig import ClusterEntry, Kubeconfig, UserEntry

DEFAULT_NAMESPACE = "default"
SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


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
        return _config_from_kubeconfig(Kubeconfig.load(paths), context.context)
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


def _config_from_kubeconfig(config: Kubeconfig, given_context: str | None) -> ClientConfig:
    name = config.context_name(given_context)
    try:
        context = config.context(name)
        namespace = context.namespace or DEFAULT_NAMESPACE
        if not _DNS_LABEL.fullmatch(namespace):
            raise ValueError(f"namespace: must be a DNS label, such as team-a; got {namespace!r}")
        cluster, cluster_folder = config.cluster_of(context)
        user, user_folder = config.user_of(context)
        server = parse_url("server", cluster.server or "", ("https", "http"))
        if cluster.proxy_url:
            parse_url("proxy-url", cluster.proxy_url, ("http",))
        if cluster.tls_server_name:
            _check_host("tls-server-name", cluster.tls_server_name)
        tls, headers = (
            _login_by_official_client(config.paths, name)
            if user.exec or user.auth_provider
            else (_tls_context(cluster, cluster_folder, user, user_folder), _auth_header_source(user, user_folder))
        )
        impersonation_headers = _impersonation_headers(user)
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        message = f"{os.pathsep.join(map(str, config.paths))}: context {name!r}: {error}"
        raise ClusterError(message, reason="InvalidKubeconfig") from error
    is_tls = server.scheme == "https"
    return ClientConfig(
        server=server.geturl().rstrip("/"),
        tls=tls if is_tls else None,
        auth_headers=headers if is_tls else dict,  # no token or password crosses plain HTTP, as in kubectl
        namespace=namespace,
        context_name=name,
        server_name=cluster.tls_server_name or None,
        proxy_url=cluster.proxy_url or None,
        impersonation_headers=impersonation_headers,
    )


def parse_url(field: str, text: str, schemes: tuple[str, ...]) -> SplitResult:
    """The URL with its scheme in lower case. Raises ValueError without the value, which may contain a password."""
    try:
        url = urlsplit(text)
        _ = url.port  # parsed when it is read
    except ValueError as error:
        raise ValueError(f"{field}: must be a URL with a valid host and port") from error
    if url.scheme not in schemes or not url.hostname:
        raise ValueError(f"{field}: must be a URL that begins with {' or '.join(f'{one}://' for one in schemes)}")
    _check_host(field, url.hostname)
    return url


def _check_host(field: str, host: str) -> None:
    """Raises ValueError for a name that the first connection would refuse with another error."""
    try:
        host.encode("idna")
    except ValueError as error:
        raise ValueError(f"{field}: must be a valid host name; got {host!r}") from error
    if not host.isprintable() or " " in host or host.startswith("."):
        raise ValueError(f"{field}: must be a valid host name; got {host!r}")


def _is_in_cluster(environ: Mapping[str, str]) -> bool:
    return (SERVICE_ACCOUNT_DIR / "token").exists() and "KUBERNETES_SERVICE_HOST" in environ


def in_cluster_server(environ: Mapping[str, str] = os.environ) -> str:
    """The URL of the API server for pods. Raises KeyError outside of a cluster."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    name = f"[{host}]" if ":" in host else host
    return f"https://{name}:{port}"


def _service_account_config(environ: Mapping[str, str]) -> ClientConfig:
    return ClientConfig(
        server=in_cluster_server(environ),
        tls=ssl.create_default_context(cafile=str(SERVICE_ACCOUNT_DIR / "ca.crt")),
        auth_headers=_token_file_source(SERVICE_ACCOUNT_DIR / "token"),
        namespace=(SERVICE_ACCOUNT_DIR / "namespace").read_text().strip() or DEFAULT_NAMESPACE,
        context_name="in this pod",
    )


def _tls_context(cluster: ClusterEntry, cluster_folder: Path, user: UserEntry, user_folder: Path) -> ssl.SSLContext:
    data, file = cluster.certificate_authority_data, cluster.certificate_authority
    tls = ssl.create_default_context(
        cafile=None if data or not file else str(cluster_folder / file),
        cadata=_decode_base64(data).decode("ascii") if data else None,
    )
    if cluster.insecure_skip_tls_verify:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate = _inline_or_file(user.client_certificate_data, user.client_certificate, user_folder)
    key = _inline_or_file(user.client_key_data, user.client_key, user_folder)
    if certificate:
        with tempfile.NamedTemporaryFile() as both:  # only its owner can read it, and ssl takes files alone
            both.write(certificate + b"\n" + (key or b""))  # a file of the certificate may hold the key, too
            both.flush()
            tls.load_cert_chain(both.name, password=_refuse_encrypted_key)
    return tls


def _refuse_encrypted_key() -> str:
    """Called by ssl for the passphrase of an encrypted key; without it, OpenSSL would ask for it on the terminal."""
    raise ValueError("client-key: must not be encrypted with a passphrase; decrypt it: openssl pkey -in KEY -out NEW")


def _inline_or_file(data: str | None, file: str | None, folder: Path) -> bytes | None:
    """A user's value from the kubeconfig itself, or from the file it names."""
    if data:
        return _decode_base64(data)
    return (folder / file).read_bytes() if file else None


def _decode_base64(text: str) -> bytes:
    return base64.b64decode("".join(text.split()), validate=True)


def _auth_header_source(user: UserEntry, folder: Path) -> Callable[[], Mapping[str, str]]:
    fixed = {}
    if user.token_file:  # takes precedence, as in kubectl
        return _token_file_source(folder / user.token_file)
    if user.token:
        return lambda: _authorization(f"Bearer {user.token}")
    if user.username:
        both = f"{user.username}:{user.password or ''}".encode()
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


def _impersonation_headers(user: UserEntry) -> tuple[tuple[str, str], ...]:
    """The headers of `as`, `as-uid`, `as-groups` and `as-user-extra`. Raises ValueError if they are invalid, and if
    `as` is missing: the API server would ignore the others."""
    headers = [("Impersonate-User", user.as_)] if user.as_ else []
    headers += [("Impersonate-Uid", user.as_uid)] if user.as_uid else []
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    headers += [
        (f"Impersonate-Extra-{_escape_header_key(key)}", value)
        for key, values in (user.as_user_extra or {}).items()
        for value in values
    ]
    for name, value in headers:
        if not value.isprintable():
            raise ValueError(f"{name}: must be a string without control characters; got {value!r}")
    if headers and not user.as_:
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
        needs = "a credential plugin, which needs the official Kubernetes client"
        message = f"context {context!r} uses {needs}; {install_extra('kubernetes')}"
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
