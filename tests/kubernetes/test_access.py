"""Which cluster a kubeconfig means, and who one is there."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.kubernetes.server import Server

from muster.errors import ClusterError, NotFound
from muster.kube.config import ClientConfig, KubeContext, load_config
from muster.kube.sync_client import KubeClient

PLAIN = {
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "a", "user": "token", "namespace": "team-a"}},
        {"name": "two", "context": {"cluster": "b", "user": "basic"}},
        {"name": "three", "context": {"cluster": "b", "user": "nobody"}},
        {"name": "broken", "context": {"cluster": "no-such", "user": "token"}},
    ],
    "clusters": [
        {"name": "a", "cluster": {"server": "http://a:8080/"}},
        {"name": "b", "cluster": {"server": "http://b:8080", "proxy-url": "http://proxy:3128", "tls-server-name": "c"}},
    ],
    "users": [
        {"name": "token", "user": {"token": "t0ken", "as": "somebody"}},
        {"name": "basic", "user": {"username": "me", "password": "secret"}},
    ],
}


def written(folder: Path, document: object, name: str = "config") -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(document))
    return str(path)


def access(path: str, context: str | None = None) -> ClientConfig:
    return load_config(KubeContext(path, context), {})


def test_the_current_context_is_meant_unless_another_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    one, two = access(path), access(path, "two")
    assert (one.server, one.namespace, one.context_name, one.tls) == ("http://a:8080", "team-a", "one", None)
    assert (two.server, two.namespace, two.proxy_url, two.server_name) == (
        "http://b:8080", "default", "http://proxy:3128", "c",
    )  # fmt: skip


def test_who_one_is_goes_into_the_headers(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN)
    assert access(path).auth_headers() == {"Authorization": "Bearer t0ken"}
    assert access(path).impersonation_headers == (("Impersonate-User", "somebody"),)
    assert access(path, "two").auth_headers() == {"Authorization": f"Basic {base64.b64encode(b'me:secret').decode()}"}
    assert access(path, "three").auth_headers() == {}


def test_a_token_in_a_file_beside_the_kubeconfig_is_read_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    document = {**PLAIN, "users": [{"name": "token", "user": {"tokenFile": "token"}}]}
    found = access(written(tmp_path, document))
    assert found.auth_headers() == {"Authorization": "Bearer first"}
    (tmp_path / "token").write_text("second\n")
    assert found.auth_headers() == {"Authorization": "Bearer second"}


ACTING = {
    "as": "Zoë",
    "as-uid": "17",
    "as-groups": ["readers", "system:authenticated"],
    "as-user-extra": {"Größe 100%": ["x"], "example.com/scopes": ["view", "list"]},
}
ACTING_AS = [
    ("Impersonate-User", "Zoë"),
    ("Impersonate-Uid", "17"),
    ("Impersonate-Group", "readers"),
    ("Impersonate-Group", "system:authenticated"),
    ("Impersonate-Extra-Gr%C3%B6%C3%9Fe%20100%25", "x"),
    ("Impersonate-Extra-example.com%2Fscopes", "view"),
    ("Impersonate-Extra-example.com%2Fscopes", "list"),
]


def acting(way: dict[str, object], **acting: object) -> dict[str, object]:
    """A kubeconfig whose user logs in this way and acts as somebody."""
    return {**PLAIN, "users": [{"name": "token", "user": {**way, **acting}}]}


@pytest.mark.parametrize("way", [{}, {"token": "t"}, {"tokenFile": "token"}, {"username": "me", "password": "p"}])
def test_whom_one_acts_as_is_sent_with_every_request_however_one_logs_in(
    server: Server, tmp_path: Path, way: dict[str, object]
) -> None:
    (tmp_path / "token").write_text("t")
    document = acting(way, **ACTING)
    document["clusters"] = [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}]
    connection = KubeClient(access(written(tmp_path, document)))
    server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})
    connection.get("/api/v1/nodes/n1")
    connection.request("PATCH", "/api/v1/nodes/n1", {"spec": {}})
    for sent in server.headers:
        heard = [(name, value.encode("latin-1").decode()) for name, value in sent if name.startswith("Impersonate")]
        assert heard == ACTING_AS
        assert [name for name, _ in sent].count("Authorization") == (1 if way else 0)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"as-groups": ["readers"]}, "as-groups, as-uid and as-user-extra require `as`"),
        ({"as": "a", "as-groups": "readers"}, "as-groups: must be a list of groups"),
        ({"as": "a", "as-user-extra": {"scopes": "view"}}, "as-user-extra: must be a mapping of lists"),
        (
            {"as": "a\r\nX-Other: b"},
            r"Impersonate-User: must be a string without control characters; got 'a\\r\\nX-Other: b'",
        ),
        ({"as": "a", "as-uid": 17}, "Impersonate-Uid: must be a string without control characters; got 17"),
    ],
)
def test_nobody_acts_as_themselves_because_whom_they_act_as_cannot_be_sent(
    tmp_path: Path, fields: dict[str, object], told: str
) -> None:
    with pytest.raises(ClusterError, match=told) as error:
        access(written(tmp_path, acting({"token": "t"}, **fields)))
    assert error.value.reason == "InvalidKubeconfig"


def test_of_several_files_the_first_that_names_a_thing_wins(tmp_path: Path) -> None:
    first = written(tmp_path, {"current-context": "two", "clusters": [PLAIN["clusters"][1]]}, "first")
    second = {**PLAIN, "clusters": [{"name": "b", "cluster": {"server": "http://never"}}]}
    both = os.pathsep.join([first, str(tmp_path / "missing"), written(tmp_path, second, "second")])
    found = load_config(KubeContext(), {"KUBECONFIG": both})
    assert (found.context_name, found.server) == ("two", "http://b:8080")


@pytest.mark.parametrize(
    ("context", "reason", "told"),
    [
        ("prod", "ContextNotFound", "context 'prod' does not exist in "),
        ("broken", "InvalidKubeconfig", "context 'broken' names cluster 'no-such', which has no server"),
    ],
)
def test_what_a_kubeconfig_lacks_is_named(tmp_path: Path, context: str, reason: str, told: str) -> None:
    with pytest.raises((ClusterError, NotFound)) as error:
        access(written(tmp_path, PLAIN), context)
    assert error.value.reason == reason
    assert told in str(error.value)


def test_the_contexts_that_there_are_are_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="existing contexts: broken, one, three, two"):
        access(written(tmp_path, PLAIN), "prod")
    with pytest.raises(NotFound, match="has no current context; existing contexts: none"):
        access(written(tmp_path, {}))


@pytest.mark.parametrize("text", ["[1", "3", "contexts: [1]", "clusters: [{}]", "\x00"])
def test_what_is_no_kubeconfig_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError) as error:
        access(str(path))
    assert error.value.reason == "InvalidKubeconfig"
    assert str(path) in str(error.value)


@pytest.mark.parametrize("data", ["###", base64.b64encode(b"no certificate").decode()])
def test_a_broken_certificate_is_told_with_its_context(tmp_path: Path, data: str) -> None:
    cluster = {"server": "https://a", "certificate-authority-data": data}
    document = {**PLAIN, "clusters": [{"name": "a", "cluster": cluster}]}
    with pytest.raises(ClusterError, match="context 'one'") as error:
        access(written(tmp_path, document))
    assert error.value.reason == "InvalidKubeconfig"


def test_without_any_kubeconfig_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterError, match="--kubeconfig FILE or set KUBECONFIG") as error:
        load_config(KubeContext(), {})
    assert error.value.reason == "KubeconfigNotFound"
    with pytest.raises(ClusterError, match="/no/such"):
        load_config(KubeContext(), {"KUBECONFIG": "/no/such"})


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
    found = access(written(tmp_path, acting({"exec": {"command": "login"}})))
    assert found.auth_headers() == {"Authorization": "Bearer fresh"}
    del settings["BearerToken"]
    assert found.auth_headers() == {}


@pytest.mark.slow  # the official client takes two seconds to import
def test_whoever_logs_in_by_a_program_gets_its_token(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes")
    program = tmp_path / "login"
    answer = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "fresh"}}'
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    found = access(written(tmp_path, acting({"exec": login}, **ACTING)))
    assert found.auth_headers() == {"Authorization": "Bearer fresh"}
    assert list(found.impersonation_headers) == ACTING_AS
