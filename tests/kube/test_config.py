"""Address and credentials of the API server, as both clients use them."""

from __future__ import annotations

import base64
import os
import ssl
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from cryptography.x509.oid import NameOID

from muster.errors import ClusterError, NotFound
from muster.kube.config import ClientConfig, KubeContext, load_config, load_in_cluster_config

KUBECONFIG = {
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "a", "user": "token", "namespace": "team-a"}},
        {"name": "two", "context": {"cluster": "b", "user": "basic"}},
        {"name": "anonymous", "context": {"cluster": "b"}},
        {"name": "no-user", "context": {"cluster": "b", "user": "no-such"}},
        {"name": "no-cluster", "context": {"cluster": "no-such", "user": "token"}},
    ],
    "clusters": [
        {"name": "a", "cluster": {"server": "https://a:8443/"}},
        {
            "name": "b",
            "cluster": {"server": "https://b:8443", "proxy-url": "http://proxy:3128", "tls-server-name": "c"},
        },
    ],
    "users": [
        {"name": "token", "user": {"token": "t0ken", "as": "alice"}},
        {"name": "basic", "user": {"username": "me", "password": "secret"}},
    ],
}


def write(folder: Path, document: object, name: str = "config") -> str:
    """The path of a kubeconfig file."""
    path = folder / name
    path.write_text(yaml.safe_dump(document))
    return str(path)


def load(path: str, context: str | None = None) -> ClientConfig:
    """The configuration of a file."""
    return load_config(KubeContext(path, context), {})


def with_user(user: dict[str, Any], **cluster: object) -> dict[str, object]:
    """The kubeconfig with another user, and other fields of its cluster."""
    clusters = (
        [{"name": "a", "cluster": {"server": "https://a:8443", **cluster}}] if cluster else KUBECONFIG["clusters"]
    )
    return {**KUBECONFIG, "clusters": clusters, "users": [{"name": "token", "user": user}]}


def test_the_current_context_is_the_default(tmp_path: Path) -> None:
    path = write(tmp_path, KUBECONFIG)
    one, two = load(path), load(path, "two")
    assert (one.server, one.namespace, one.context_name) == ("https://a:8443", "team-a", "one")
    assert (two.server, two.namespace, two.proxy_url, two.server_name) == (
        "https://b:8443", "default", "http://proxy:3128", "c",
    )  # fmt: skip


@pytest.mark.parametrize("namespace", ["../../x", "a/b", "..", "team_a", "Team", "a" * 64, "a\n"])
def test_a_namespace_that_is_no_label_is_refused(tmp_path: Path, namespace: str) -> None:
    contexts = [{"name": "one", "context": {"cluster": "a", "user": "token", "namespace": namespace}}]
    with pytest.raises(ClusterError, match="context 'one': namespace: must be a DNS label") as error:
        load(write(tmp_path, {**KUBECONFIG, "contexts": contexts}))
    assert error.value.reason == "InvalidKubeconfig"


def test_token_and_password_become_headers(tmp_path: Path) -> None:
    path = write(tmp_path, KUBECONFIG)
    assert load(path).auth_headers() == {"Authorization": "Bearer t0ken"}
    assert load(path).impersonation_headers == (("Impersonate-User", "alice"),)
    assert load(path, "two").auth_headers() == {"Authorization": f"Basic {base64.b64encode(b'me:secret').decode()}"}
    assert load(path, "anonymous").auth_headers() == {}


@pytest.mark.parametrize("login", [{"token": "t"}, {"tokenFile": "token"}, {"username": "me", "password": "secret"}])
def test_no_token_or_password_is_sent_to_a_server_without_tls(tmp_path: Path, login: dict[str, object]) -> None:
    (tmp_path / "token").write_text("t")
    encrypted = load(write(tmp_path, with_user(login, server="https://host")))
    plain = load(write(tmp_path, with_user(login, server="http://host")))
    assert (plain.tls, plain.auth_headers()) == (None, {})
    assert (encrypted.tls is not None, list(encrypted.auth_headers())) == (True, ["Authorization"])


def test_a_token_file_is_relative_to_the_kubeconfig_and_read_for_each_request(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    found = load(write(tmp_path, with_user({"tokenFile": "token", "token": "other"})))
    assert found.auth_headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    assert found.auth_headers() == {"Authorization": "Bearer second"}
    (tmp_path / "token").unlink()
    with pytest.raises(ClusterError, match="token file") as error:
        found.auth_headers()
    assert error.value.reason == "Unauthorized"


def test_a_token_that_is_no_header_is_refused_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as error:
        load(write(tmp_path, with_user({"token": "s3cret\nX-Other: b"}))).auth_headers()
    assert error.value.reason == "Unauthorized"
    assert "s3cret" not in str(error.value)
    assert load(write(tmp_path, with_user({"token": "t\n"}))).auth_headers() == {"Authorization": "Bearer t"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"as-groups": ["readers"]}, "as-groups, as-uid and as-user-extra require `as`"),
        ({"as": "a", "as-groups": "readers"}, "user 'token': as-groups: Expected `array | null`, got `str`"),
        (
            {"as": "a", "as-user-extra": {"scopes": "view"}},
            r"user 'token': as-user-extra\[\.\.\.\]: Expected `array`, got `str`",
        ),
        (
            {"as": "a\r\nX-Other: b"},
            r"Impersonate-User: must be a string without control characters; got 'a\\r\\nX-Other: b'",
        ),
        ({"as": "a", "as-uid": 17}, "user 'token': as-uid: Expected `str | null`, got `int`"),
    ],
)
def test_invalid_impersonation_is_refused_rather_than_left_out(
    tmp_path: Path, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ClusterError, match=message) as error:
        load(write(tmp_path, with_user({"token": "t", **fields})))
    assert error.value.reason == "InvalidKubeconfig"


def test_certificates_are_verified_unless_disabled(tmp_path: Path) -> None:
    strict = load(write(tmp_path, with_user({}, server="https://host")))
    lax = load(write(tmp_path, with_user({}, server="https://host", **{"insecure-skip-tls-verify": True})))
    assert strict.tls is not None
    assert lax.tls is not None
    assert (strict.tls.verify_mode, strict.tls.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert lax.tls.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("value", ["false", "true", 0, 1, []])
def test_whether_certificates_are_verified_must_be_a_boolean(tmp_path: Path, value: object) -> None:
    path = write(tmp_path, with_user({}, server="https://host", **{"insecure-skip-tls-verify": value}))
    with pytest.raises(ClusterError, match="cluster 'a': insecure-skip-tls-verify: Expected `bool") as error:
        load(path)
    assert error.value.reason == "InvalidKubeconfig"


def test_the_scheme_of_the_server_may_have_any_case(tmp_path: Path) -> None:
    found = load(write(tmp_path, with_user({"token": "t"}, server="HTTPS://Host:6443/prefix/")))
    assert found.server == "https://Host:6443/prefix"
    assert found.tls is not None
    assert load(write(tmp_path, with_user({}, server="HTTP://host"))).tls is None


@pytest.mark.parametrize(
    "server", ["host:6443", "host", "//host", "ftp://host", "https://", "https://h:a", "https://[::1", "https://a..b",
               "https://a b", ["https://host"], 5],
)  # fmt: skip
def test_a_server_that_is_no_url_of_http_or_https_is_refused(tmp_path: Path, server: object) -> None:
    with pytest.raises(ClusterError, match="server: ") as error:
        load(write(tmp_path, with_user({"token": "t"}, server=server)))
    assert error.value.reason == "InvalidKubeconfig"


USER_STRINGS = (
    "token", "tokenFile", "username", "password", "client-certificate", "client-certificate-data", "client-key",
    "client-key-data", "as", "as-uid",
)  # fmt: skip
CLUSTER_STRINGS = ("proxy-url", "tls-server-name", "certificate-authority", "certificate-authority-data")


@pytest.mark.parametrize("value", [5, ["x"], {"x": "y"}, True])
@pytest.mark.parametrize("field", USER_STRINGS + CLUSTER_STRINGS)
def test_a_field_of_another_type_is_refused_by_name(tmp_path: Path, field: str, value: object) -> None:
    user, cluster = ({field: value}, {}) if field in USER_STRINGS else ({}, {field: value})
    with pytest.raises(ClusterError, match=f"{field}: Expected `str") as error:
        load(write(tmp_path, with_user(user, **{"server": "https://host", **cluster})))
    assert error.value.reason == "InvalidKubeconfig"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"current-context": ["one"]}, "current-context"),
        ({"contexts": [{"name": ["one"]}]}, r"contexts\[0\].name"),
        ({"contexts": [{"name": "one", "context": {"cluster": ["a"]}}]}, "cluster"),
        ({"contexts": [{"name": "one", "context": {"cluster": "a", "user": ["token"]}}]}, "user"),
        ({"contexts": [{"name": "one", "context": {"cluster": "a", "namespace": 5}}]}, "namespace"),
        ({"contexts": [{"name": "one", "context": ["a"]}]}, "context 'one'"),
        ({"users": [{"name": "token", "user": ["a"]}]}, "user 'token'"),
    ],
)
def test_an_entry_of_another_form_is_refused_by_name(tmp_path: Path, change: dict[str, object], field: str) -> None:
    with pytest.raises(ClusterError, match=f"{field}: ") as error:
        load(write(tmp_path, {**KUBECONFIG, **change}))
    assert error.value.reason == "InvalidKubeconfig"


def test_an_invalid_entry_does_not_matter_to_another_context(tmp_path: Path) -> None:
    users = [*KUBECONFIG["users"], {"name": "other", "user": {"token": 5}}]
    assert load(write(tmp_path, {**KUBECONFIG, "users": users})).context_name == "one"


def test_a_client_certificate_without_key_is_refused(tmp_path: Path) -> None:
    data = base64.b64encode(b"no certificate").decode()
    with pytest.raises(ClusterError, match="context 'one'") as error:
        load(write(tmp_path, with_user({"client-certificate-data": data}, server="https://host")))
    assert error.value.reason == "InvalidKubeconfig"


def encrypted_login() -> dict[str, str]:
    """The fields of a user whose client key is encrypted with a passphrase."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "alice")]), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    parts = {"client-certificate-data": certificate.public_bytes(Encoding.PEM), "client-key-data": pem}
    return {name: base64.b64encode(data).decode() for name, data in parts.items()}


def test_an_encrypted_client_key_is_refused_without_asking_for_its_passphrase(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="context 'one': client-key: must not be encrypted") as error:
        load(write(tmp_path, with_user(dict(encrypted_login()), server="https://host")))
    assert error.value.reason == "InvalidKubeconfig"


def test_of_several_files_the_first_entry_of_a_name_wins(tmp_path: Path) -> None:
    first = write(tmp_path, {"current-context": "two", "clusters": [KUBECONFIG["clusters"][1]]}, "first")
    second = {**KUBECONFIG, "clusters": [{"name": "b", "cluster": {"server": "http://never"}}]}
    both = os.pathsep.join([first, str(tmp_path / "missing"), write(tmp_path, second, "second")])
    found = load_config(KubeContext(), {"KUBECONFIG": both})
    assert (found.context_name, found.server) == ("two", "https://b:8443")


@pytest.mark.parametrize(
    ("context", "reason", "message"),
    [
        ("prod", "ContextNotFound", "context 'prod' does not exist in "),
        ("prod", "ContextNotFound", "existing contexts: anonymous, no-cluster, no-user, one, two"),
        ("no-cluster", "InvalidKubeconfig", "context 'no-cluster': names cluster 'no-such', which has no server"),
        ("no-user", "InvalidKubeconfig", "context 'no-user': names user 'no-such', which does not exist"),
    ],
)
def test_the_error_names_what_the_kubeconfig_lacks(tmp_path: Path, context: str, reason: str, message: str) -> None:
    with pytest.raises((ClusterError, NotFound)) as error:
        load(write(tmp_path, KUBECONFIG), context)
    assert error.value.reason == reason
    assert message in str(error.value)


def test_a_kubeconfig_without_current_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has no current context; existing contexts: none"):
        load(write(tmp_path, {}))


@pytest.mark.parametrize("text", ["[1", "3", "contexts: [1]", "clusters: [{}]", "\x00", "a: " + "[" * 3000])
def test_an_invalid_file_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError) as error:
        load(str(path))
    assert error.value.reason == "InvalidKubeconfig"
    assert str(path) in str(error.value)


def test_the_error_of_an_invalid_file_shows_no_token(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("users:\n- name: a\n  user: {token: s3cret\n")
    with pytest.raises(ClusterError) as error:
        load(str(path))
    assert "s3cret" not in str(error.value)
    assert "line 4: " in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "socks5://me:s3cret@proxy",
        "https://proxy",
        "proxy:3128",
        "http://",
        "http://me:s3cret/@proxy",
        "http://me:s3cret@proxy:port",
        "http://me:s3cret@proxy:99999",
    ],
)
def test_a_proxy_of_another_scheme_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ClusterError, match="proxy-url: ") as error:
        load(write(tmp_path, with_user({}, **{"proxy-url": url})))
    assert error.value.reason == "InvalidKubeconfig"
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("data", ["###", base64.b64encode(b"no certificate").decode()])
def test_an_invalid_authority_is_refused_with_its_context(tmp_path: Path, data: str) -> None:
    with pytest.raises(ClusterError, match="context 'one'") as error:
        load(write(tmp_path, with_user({}, server="https://a", **{"certificate-authority-data": data})))
    assert error.value.reason == "InvalidKubeconfig"


def test_without_kubeconfig_the_error_names_flag_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="--kubeconfig FILE or set KUBECONFIG") as error:
        load_config(KubeContext(), {})
    assert error.value.reason == "KubeconfigNotFound"
    with pytest.raises(ClusterError, match="/no/such"):
        load_config(KubeContext(), {"KUBECONFIG": "/no/such"})


def test_outside_of_a_cluster_there_is_no_service_account() -> None:
    with pytest.raises(ClusterError, match="pass --kubeconfig FILE"):
        load_in_cluster_config({})


def test_only_the_authorization_header_of_the_official_client_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "Other": {"in": "header", "key": "x-api-key", "value": "other"},
        "BearerToken": {"in": "header", "key": "authorization", "value": "Bearer fresh"},
    }
    configuration = SimpleNamespace(
        auth_settings=lambda: settings, ssl_ca_cert=None, verify_ssl=True, cert_file=None, key_file=None
    )
    official = SimpleNamespace(
        client=SimpleNamespace(Configuration=lambda: configuration),
        config=SimpleNamespace(load_kube_config=lambda *args, **options: None, ConfigException=ValueError),
    )
    monkeypatch.setitem(sys.modules, "kubernetes", official)
    found = load(write(tmp_path, with_user({"exec": {"command": "login"}})))
    assert found.auth_headers() == {"Authorization": "Bearer fresh"}
    del settings["BearerToken"]
    assert found.auth_headers() == {}


@pytest.mark.slow  # the official client takes two seconds to import
@pytest.mark.smoke
def test_a_credential_plugin_returns_the_token(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    plugin = tmp_path / "login"
    answer = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "fresh"}}'
    plugin.write_text(f"#!/bin/sh\necho '{answer}'\n")
    plugin.chmod(0o755)
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    found = load(write(tmp_path, with_user({"exec": login, "as": "alice"})))
    assert found.auth_headers() == {"Authorization": "Bearer fresh"}
    assert found.impersonation_headers == (("Impersonate-User", "alice"),)


def test_a_credential_plugin_without_the_official_client_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ClusterError, match=r"muster\[kubernetes\]") as error:
        load(write(tmp_path, with_user({"exec": {"command": "true"}})))
    assert error.value.reason == "MissingKubernetesClient"
