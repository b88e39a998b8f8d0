"""The operator's read API over TLS on this machine, with an API server that answers from memory."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from tests.cluster.controlplane.certificates import Authority, Issued

from muster.errors import ClusterError, NotFound
from muster.heartbeats.parse import StepPoint
from muster.local.nodes import free_port
from muster.visibility.state import ReadState
from muster_operator.visibility.server import VisibilityServer, VisibilitySettings

HOST = "muster-operator.muster-system.svc"
PROXY = "front-proxy-client"
Right = tuple[str, str, str]
"""User, resource, namespace; an empty namespace: all of them."""


@dataclass
class FakeApi:
    """Knows the CA of the proxy and the rights of users. `reviews` are the SubjectAccessReviews that it was asked,
    `config` is what it answers instead of the ConfigMap, which was read `config_reads` times."""

    authority: Authority
    rights: set[Right] = field(default_factory=set)
    reviews: list[Right] = field(default_factory=list)
    specs: list[dict[str, Any]] = field(default_factory=list)
    fails: bool = False
    config: bytes | None = None
    config_reads: int = 0

    async def get(self, path: str) -> bytes:
        assert path.endswith("/extension-apiserver-authentication")
        self.config_reads += 1
        if self.config is not None:
            return self.config
        data = {
            "requestheader-client-ca-file": self.authority.file.read_text(),
            "requestheader-allowed-names": json.dumps([PROXY]),
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        return json.dumps({"data": data}).encode()

    async def post(self, path: str, body: bytes) -> bytes:
        if self.fails:
            raise ClusterError("the API server does not answer")
        spec = json.loads(body)["spec"]
        self.specs.append(spec)
        asks = spec["resourceAttributes"]
        right = spec["user"], asks["resource"], asks.get("namespace", "")
        self.reviews.append(right)
        allowed = right in self.rights or (right[0], right[1], "") in self.rights
        return json.dumps({"status": {"allowed": allowed}}).encode()


@dataclass
class Answer:
    """Code, JSON and headers of an answer."""

    code: int
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.body["items"]]


@dataclass
class ReadApi:
    """A running server."""

    folder: Path
    port: int
    api: FakeApi
    server_authority: Authority
    proxy: Issued
    task: asyncio.Task[None]

    async def get(
        self,
        path: str,
        user: str = "alice",
        *,
        certificate: Issued | None = None,
        method: str = "GET",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """What a client with this certificate is answered; that of the API server's proxy by default."""
        issued = certificate or self.proxy
        return await self._request(path, method, {"X-Remote-User": user, **(headers or {})}, issued)

    async def get_without_certificate(self, path: str, user: str) -> Answer:
        return await self._request(path, "GET", {"X-Remote-User": user}, None)

    @asynccontextmanager
    async def kept_connection(self, user: str = "alice") -> AsyncIterator[Callable[[str], Awaitable[int]]]:
        """Requests over one connection of the present proxy; they return the status code. `aiohttp.ClientError`: it
        was closed, and no other is accepted."""
        context = ssl.create_default_context(cafile=str(self.server_authority.file))
        context.load_cert_chain(self.proxy.certificate, self.proxy.key)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:

            async def get(path: str) -> int:
                url, headers = f"https://127.0.0.1:{self.port}{path}", {"X-Remote-User": user}
                async with session.get(url, headers=headers, ssl=context, server_hostname=HOST) as found:
                    await found.read()
                    return found.status

            yield get

    async def _request(self, path: str, method: str, headers: dict[str, str], issued: Issued | None) -> Answer:
        context = ssl.create_default_context(cafile=str(self.server_authority.file))
        if issued is not None:
            context.load_cert_chain(issued.certificate, issued.key)
        url = f"https://127.0.0.1:{self.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, url, headers=headers, ssl=context, server_hostname=HOST, allow_redirects=False
            ) as found,
        ):
            return Answer(found.status, await found.json(), dict(found.headers))


async def _no_curve(uid: str) -> Sequence[StepPoint]:
    raise NotFound("no pod with a collector runs", reason="NoCollector")


@asynccontextmanager
async def serving(
    folder: Path,
    state: Callable[[], ReadState],
    *rights: Right,
    read_curve: Callable[[str], Awaitable[Sequence[StepPoint]]] | None = None,
    **settings: Any,
) -> AsyncIterator[ReadApi]:
    """A server that answers from `state`, once it listens; `settings` are those of `VisibilitySettings`."""
    authority, own = Authority(folder / "proxy"), Authority(folder / "own")
    own.issue("serving", HOST, folder=folder / "tls")
    port = free_port((), random.Random())  # none that the kernel gives to others before the server listens
    api = FakeApi(authority, set(rights))
    config = VisibilitySettings(f"127.0.0.1:{port}", folder / "tls", **settings)
    # Two clients with one method each: reviews must not use up the rate limit of the ConfigMap.
    config_api, review_api = SimpleNamespace(get=api.get), SimpleNamespace(post=api.post)
    server = VisibilityServer(config, cast(Any, config_api), cast(Any, review_api), state, read_curve or _no_curve)
    task = asyncio.create_task(server.run())
    try:
        await until(lambda: listens(port), task)
        yield ReadApi(folder, port, api, own, authority.issue(PROXY), task)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(holds: Callable[[], Awaitable[bool]], task: asyncio.Task[None] | None = None) -> None:
    """Wait until it holds; fails with the task's error if that ends."""
    async with asyncio.timeout(60):
        while not await holds():
            if task is not None and task.done():
                task.result()
            await asyncio.sleep(0.02)


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
