"""Address and credentials of the API server."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.errors import ClusterError
from muster.kube.endpoint import load_endpoint


def written(folder: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> str:
    document = {
        "apiVersion": "v1",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        **more,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_a_token_becomes_the_header(tmp_path: Path) -> None:
    endpoint = load_endpoint(written(tmp_path, {"server": "http://host:1/"}, {"token": "secret"}))
    assert (endpoint.url, endpoint.tls, endpoint.authorization()) == ("http://host:1", None, "Bearer secret")


def test_a_token_file_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    endpoint = load_endpoint(written(tmp_path, {"server": "http://host:1"}, {"tokenFile": "token"}))
    assert endpoint.authorization() == "Bearer secret"


def test_certificates_are_verified_unless_disabled(tmp_path: Path) -> None:
    strict = load_endpoint(written(tmp_path, {"server": "https://host", "tls-server-name": "other"}, {}))
    lax = load_endpoint(written(tmp_path, {"server": "https://host", "insecure-skip-tls-verify": True}, {}))
    assert strict.tls is not None
    assert lax.tls is not None
    assert (strict.tls.verify_mode, strict.server_name) == (ssl.CERT_REQUIRED, "other")
    assert lax.tls.verify_mode == ssl.CERT_NONE


def test_other_authentication_uses_the_official_client(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never"}
    said = '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"made"}}'
    user = {"exec": {**plugin, "args": ["-c", f"echo '{said}'"]}}
    endpoint = load_endpoint(written(tmp_path, {"server": "http://host:1"}, user))
    assert endpoint.authorization() == "Bearer made"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"current-context": None}, "current-context is missing; pass --context NAME"),
        ({"current-context": "there"}, "context 'there' does not exist; available: here"),
        ({"clusters": []}, "cluster 'c' does not exist; available: none"),
    ],
)
def test_an_invalid_kubeconfig_is_rejected_with_the_reason(
    tmp_path: Path, more: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ClusterError) as caught:
        load_endpoint(written(tmp_path, {"server": "http://host"}, {}, **more))
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_without_kubeconfig_and_pod_the_error_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="pass --kubeconfig FILE"):
        load_endpoint(None)


def test_without_the_official_client_the_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    path = written(tmp_path, {"server": "http://host:1"}, {"exec": {"command": "true"}})
    with pytest.raises(ClusterError, match=r"muster\[kubernetes\]"):
        load_endpoint(path)
