"""Where the API server is and how we prove who we are: from a kubeconfig, or from the pod we run in."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config

from muster.errors import ClusterError

_KEEP_S = 10.0  # how long a token that was read is used before it is asked for again


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`url` without a slash at its end; `tls` is None for plain http; `authorization` gives the header or None.

    `server_name` is whom the certificate should be of, where that is not the host of `url`.
    """

    url: str
    server_name: str | None
    tls: ssl.SSLContext | None
    authorization: Callable[[], str | None]


def connect(kubeconfig: str | None, context: str | None = None) -> Endpoint:
    """The endpoint of a kubeconfig file, or of the pod's service account when there is no file.

    Raises ClusterError that names the file and what is wrong with it.
    """
    settings = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=settings, persist_config=False)
    except config.ConfigException as error:
        where = (
            "in a pod's service account (pass --kubeconfig outside of a cluster)" if kubeconfig is None else kubeconfig
        )
        raise ClusterError(f"no cluster found {where}: {error}") from error
    server_name = getattr(settings, "tls_server_name", None) or None
    return Endpoint(str(settings.host).rstrip("/"), server_name, _tls(settings), _Authorization(settings))


def _tls(settings: Any) -> ssl.SSLContext | None:
    if not str(settings.host).startswith("https"):
        return None
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file or None)
    return context


class _Authorization:
    """The header, read anew every few seconds: tokens of service accounts and of plugins expire."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._until = 0.0
        self._value: str | None = None

    def __call__(self) -> str | None:
        now = time.monotonic()
        if now >= self._until:
            ways = self._settings.auth_settings().values()
            self._value = next((way["value"] for way in ways if way["key"].lower() == "authorization"), None)
            self._until = now + _KEEP_S
        return self._value
