"""What the synchronous client sends to the API server, and through which proxy."""

from __future__ import annotations

import base64
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
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
                "clusters": [{"name": "a", "cluster": {"server": "https://host"}}],
                "users": [{"name": "u", "user": {**login, **USER_FIELDS}}],
            }
        )
    )
    config = load_config(KubeContext(str(tmp_path / "config")), {})
    client = KubeClient(replace(config, server=f"http://127.0.0.1:{server.port}", tls=None))
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


@pytest.mark.parametrize("url", ["http://me:s3cret@proxy:port", "me:s3cret@proxy:99999", "socks5://proxy", "http://"])
def test_an_invalid_proxy_of_the_environment_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", url)
    client = KubeClient(ClientConfig("http://api.example:8080", None, dict))
    with pytest.raises(ClusterError, match="HTTP_PROXY: must be") as error:
        client.get("/version")
    assert (error.value.reason, error.value.field) == ("InvalidProxy", "HTTP_PROXY")
    assert "s3cret" not in str(error.value)


def test_a_proxy_of_the_environment_needs_no_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_proxy() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{proxy.port}")
        assert KubeClient(ClientConfig("http://api.example:8080", None, dict)).get("/version") == {}
    assert proxy.heads[0].startswith("CONNECT api.example:8080 HTTP/1.")


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


@pytest.mark.parametrize(("server_name", "verified"), [("api.example", True), (None, False), ("other.example", False)])
def test_the_certificate_is_verified_for_the_server_name_of_the_kubeconfig(
    tmp_path: Path, server_name: str | None, verified: bool
) -> None:
    certificate = tmp_path / "server.pem"
    certificate.write_bytes(self_signed("api.example"))
    server = HTTPServer(("127.0.0.1", 0), Version)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    server.socket = served.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        trusted = ssl.create_default_context(cafile=str(certificate))
        config = ClientConfig(f"https://127.0.0.1:{server.server_port}", trusted, dict, server_name=server_name)
        if verified:
            assert KubeClient(config).get("/version") == {"gitVersion": "v1"}
        else:
            with pytest.raises(ClusterError, match="certificate verify failed"):
                KubeClient(config).get("/version")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Version(BaseHTTPRequestHandler):
    """Answers every request with a version."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"gitVersion": "v1"}')

    def log_message(self, *args: object) -> None:
        """Says nothing."""


def self_signed(host: str) -> bytes:
    """A certificate of this host with its key, which is also the authority that signed it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private
