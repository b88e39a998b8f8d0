"""What the synchronous client sends to the API server, and through which proxy."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster_client.server import NODES, Handler, Server
from tests.kube.impersonation import HEADERS, USER_FIELDS, received
from tests.kube.proxy import run_proxy

from muster.errors import ClusterError
from muster.kube.config import ClientConfig, KubeContext, load_config
from muster.kube.sync_client import KubeClient


@pytest.mark.parametrize("login", [{}, {"token": "t"}, {"tokenFile": "token"}, {"username": "me", "password": "p"}])
def test_impersonation_is_sent_with_every_request_for_every_login(
    server: Server, tmp_path: Path, login: dict[str, object]
) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "config").write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "a", "user": "u"}}],
                "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
                "users": [{"name": "u", "user": {**login, **USER_FIELDS}}],
            }
        )
    )
    client = KubeClient(load_config(KubeContext(str(tmp_path / "config")), {}))
    server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}})
    client.get("/api/v1/nodes/n1")
    client.request("PATCH", "/api/v1/nodes/n1", {"spec": {}})
    assert [received(sent) for sent in server.headers] == [HEADERS, HEADERS]
    for sent in server.headers:
        assert [name for name, _ in sent].count("Authorization") == (1 if login else 0)


def test_requests_pass_through_the_proxy_of_the_kubeconfig() -> None:
    with run_proxy() as proxy:
        url = f"http://me:s%40cret@127.0.0.1:{proxy.port}"
        client = KubeClient(ClientConfig("http://api.example:8080", None, dict, proxy_url=url))
        assert client.get("/version") == {}
    connect, request = proxy.heads
    assert connect.startswith("CONNECT api.example:8080 HTTP/1.")
    login = base64.b64encode(b"me:s@cret").decode()
    assert f"Proxy-Authorization: Basic {login}" in connect
    assert request.startswith("GET /version HTTP/1.1")
    assert "Proxy-Authorization" not in request


def answer_with(body: bytes) -> Any:
    """A fault that answers 200 with this body."""

    def fault(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return fault


@pytest.mark.parametrize(
    "body", [b"<html>" + b"x" * 500, b"[]", b"null", b"3", b'{"a": "\xff"}', b'{"x": ' + b"9" * 5000 + b"}"]
)
def test_an_answer_other_than_an_object_is_an_error_with_its_beginning(server: Server, body: bytes) -> None:
    server.fail("GET", NODES, answer_with(body))
    with pytest.raises(ClusterError) as error:
        server.connection().get(NODES)
    assert error.value.reason == "InvalidAnswer"
    assert repr(body[:200].decode(errors="replace")) in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"items": [1], "metadata": {}}', b'{"items": {}, "metadata": {}}', b'{"items": [], "metadata": 1}'],
)
def test_an_answer_other_than_a_list_of_objects_is_an_error(server: Server, body: bytes) -> None:
    server.fail("GET", NODES, answer_with(body))
    with pytest.raises(ClusterError) as error:
        list(server.connection().list_items(NODES))
    assert error.value.reason == "InvalidAnswer"
