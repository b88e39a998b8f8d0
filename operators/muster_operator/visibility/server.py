"""The aggregated API: discovery, authentication, authorization and bounds around `muster.visibility`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec
from aiohttp import web

from muster.errors import ClusterError, InvalidSpec, NotFound
from muster.heartbeats.parse import StepPoint
from muster.kube.async_client import AsyncKubeClient
from muster.routes import UNKNOWN_ROUTE
from muster.visibility.discovery import accepts_table, discovery_documents, status_object, to_table
from muster.visibility.list_types import ItemList
from muster.visibility.lists import answer, job_curve, namespaces_in, requested_job
from muster.visibility.requests import CURVES, ReadRequest, parse_request
from muster.visibility.state import ReadState
from muster.visibility.types import Item
from muster_operator.visibility.access import LIST_NODES, LIST_QUEUES, MAX_NAMESPACES, AccessReviewer, TooManyNamespaces
from muster_operator.visibility.request_header import CONFIG_MAP, RequestHeaderConfig, User

_LOG = logging.getLogger("muster.operator")
CERTIFICATE, KEY = "tls.crt", "tls.key"  # as in a Secret of type kubernetes.io/tls
_CONCURRENT = 4  # answers being made
_CLUSTER_SCOPED = {"queues": LIST_QUEUES, "nodes": LIST_NODES}


@dataclass(frozen=True, slots=True)
class VisibilitySettings:
    """`address` empty: the API is not served. `tls_folder` has tls.crt and tls.key, which are read again every
    `refresh_s` seconds, as is the ConfigMap. `max_open`: requests in progress."""

    address: str = ""
    tls_folder: Path = Path("/etc/muster/visibility")
    refresh_s: float = 30.0
    max_open: int = 64
    max_open_per_user: int = 8
    timeout_s: float = 20.0
    max_namespaces: int = MAX_NAMESPACES


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """The server's certificate and key, and the CA of its clients, all PEM."""

    certificate: bytes
    key: bytes
    client_ca: str

    @classmethod
    def read(cls, folder: Path, client_ca: str) -> Identity:
        """Of the files of a mounted Secret. Raises OSError."""
        return cls((folder / CERTIFICATE).read_bytes(), (folder / KEY).read_bytes(), client_ca)


class TlsListener:
    """Serves one application on one address to clients with a certificate of `client_ca`."""

    def __init__(self, runner: web.AppRunner, address: str, folder: Path) -> None:
        self._runner = runner
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._folder = folder
        self._site: web.TCPSite | None = None
        self._served: Identity | None = None
        self._client_ca = ""
        self._trusted: WeakSet[ssl.SSLContext] = WeakSet()  # those that verify clients with this CA

    async def serve(self, client_ca: str) -> bool:
        """Serve with the present files and this CA; whether anything changed. Open connections are kept, but are not
        trusted any more if the CA is another. Raises OSError, also for files that are no certificate and key."""
        identity = Identity.read(self._folder, client_ca)
        if identity == self._served:
            return False
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._folder / CERTIFICATE, self._folder / KEY)
        context.load_verify_locations(cadata=client_ca)
        if client_ca != self._client_ca:
            self._trusted, self._client_ca = WeakSet(), client_ca
        self._trusted.add(context)
        await self.stop()
        site = web.TCPSite(self._runner, self._host.strip("[]") or None, self._port, ssl_context=context)
        await site.start()
        self._site, self._served = site, identity
        return True

    def trusts(self, request: web.Request) -> bool:
        """Whether the certificate of the request's connection was verified with the present CA."""
        return request.transport is not None and request.transport.get_extra_info("sslcontext") in self._trusted

    async def stop(self) -> None:
        """Accept no more connections."""
        site, self._site, self._served = self._site, None, None
        if site is not None:
            await site.stop()


class VisibilityServer:
    """Answers the API server's proxy. `state` returns what is known now, and raises `ClusterError` if that is not
    everything yet. `read_curve` reads the curve of a job, by its uid. `api` reads the ConfigMap. `review_api` asks what
    users may read, with rate limits of its own, so that readers delay neither scheduling nor new certificates."""

    def __init__(
        self,
        settings: VisibilitySettings,
        api: AsyncKubeClient,
        review_api: AsyncKubeClient,
        state: Callable[[], ReadState],
        read_curve: Callable[[str], Awaitable[Sequence[StepPoint]]],
    ) -> None:
        self._settings = settings
        self._api = api
        self._state = state
        self._read_curve = read_curve
        self._access = AccessReviewer(review_api, max_namespaces=settings.max_namespaces)
        # Threads of its own: those of the event loop's executor decide for the leader.
        self._threads = ThreadPoolExecutor(_CONCURRENT, thread_name_prefix="read-api")
        self._open: Counter[str] = Counter()  # requests in progress by user
        self._config: RequestHeaderConfig | None = None
        self._listener: TlsListener | None = None

    async def run(self) -> None:
        """Serve until cancelled. Raises `ClusterError` or OSError if it cannot begin; later failures to read the
        ConfigMap or the files are logged, and the last ones are used."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        self._listener = listener = TlsListener(runner, self._settings.address, self._settings.tls_folder)
        try:
            await self._refresh(listener)
            while True:
                await asyncio.sleep(self._settings.refresh_s)
                try:
                    await self._refresh(listener)
                except (ClusterError, OSError) as error:
                    _LOG.warning("read API: certificates not refreshed", extra={"why": str(error)})
        finally:
            await runner.cleanup()

    async def _refresh(self, listener: TlsListener) -> None:
        found = await self._api.get(CONFIG_MAP)
        try:
            data = msgspec.json.decode(found, type=_ConfigMap).data
        except ValueError as error:
            raise ClusterError(f"{CONFIG_MAP}: the answer is not a ConfigMap: {found[:200]!r}") from error
        config = RequestHeaderConfig.from_config_map(data or {})
        if await listener.serve(config.client_ca):
            _LOG.info("read API: serving", extra={"address": self._settings.address})
        self._config = config

    async def _handle(self, request: web.Request) -> web.Response:
        if self._listener is None or not self._listener.trusts(request):
            # Without an answer: the API server then repeats the request on a new connection.
            if request.transport is not None:
                request.transport.abort()
            return _status(401, "Unauthorized", "the CA of the connection's certificate was withdrawn")
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        user = None if self._config is None else self._config.authenticate(certificate, request.headers.items())
        if user is None:
            return _status(401, "Unauthorized", "requests must come through the API server")
        if request.method != "GET":
            return _status(405, "MethodNotAllowed", f"the read API has only GET; got {request.method[:20]}")
        if self._open.total() >= self._settings.max_open:
            return _too_many(f"{self._settings.max_open} requests are in progress; retry")
        if self._open[user.name] >= self._settings.max_open_per_user:
            return _too_many(
                f"{self._settings.max_open_per_user} requests of user {user.name!r} are in progress; retry"
            )
        self._open[user.name] += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._answer(user, request)
        except TimeoutError:
            return _status(504, "Timeout", f"no answer within {self._settings.timeout_s:g} s")
        except InvalidSpec as error:
            return _status(400, "BadRequest", str(error))
        except NotFound as error:
            reason = "NotFound" if error.reason == UNKNOWN_ROUTE else error.reason  # as the API server's
            return _status(404, reason, str(error))
        except TooManyNamespaces as error:
            return _status(403, error.reason, str(error))
        except ClusterError as error:
            return _status(503, "ServiceUnavailable", str(error))
        finally:
            self._open -= Counter([user.name])  # without users who have none left

    async def _answer(self, user: User, request: web.Request) -> web.Response:
        document = discovery_documents().get(request.path.rstrip("/"))
        if document is not None:
            return _json(msgspec.json.encode(document))
        wanted = parse_request(request.raw_path)
        permission = _CLUSTER_SCOPED.get(wanted.resource.plural)
        if permission is not None and not await self._access.is_allowed(user, permission):
            group = f".{permission.group}" if permission.group else ""
            message = f"user {user.name!r} cannot list {permission.resource}{group}"
            return _status(403, "Forbidden", message)
        state = self._state()
        try:
            namespaces = namespaces_in(state, wanted)
            if _sums_queues(wanted) and await self._access.is_allowed(user, LIST_QUEUES):
                readable = frozenset(namespaces)  # as the sums of the list of queues
            else:
                readable = await self._access.readable_namespaces(user, namespaces)
        except TooManyNamespaces:
            if wanted.resource.namespaced:
                raise
            readable = frozenset()  # nodes, without their pods
        as_table = accepts_table(request.headers.get("Accept", ""))
        if wanted.resource.plural == CURVES:
            job = requested_job(state, wanted, readable.__contains__)
            curve = job_curve(job, await self._read_curve(job.metadata.uid))
            return _json(_encode(curve, state.observed.now, as_table))
        loop = asyncio.get_running_loop()
        return _json(await loop.run_in_executor(self._threads, _answer, state, wanted, readable, as_table))


def _answer(state: ReadState, request: ReadRequest, readable: frozenset[str], as_table: bool) -> bytes:
    return _encode(answer(state, request, readable.__contains__), state.observed.now, as_table)


def _encode(found: Item | ItemList, now: float, as_table: bool) -> bytes:
    if as_table:
        return msgspec.json.encode(to_table(found, now))
    return found.model_dump_json(by_alias=True, exclude_none=True).encode()


def _sums_queues(request: ReadRequest) -> bool:
    """Whether it asks for the usage of queues in all namespaces."""
    return request.usage is not None and request.usage.by == "queue" and request.namespace is None


def _json(body: bytes, code: int = 200) -> web.Response:
    return web.Response(body=body, status=code, content_type="application/json")


def _too_many(message: str) -> web.Response:
    response = _status(429, "TooManyRequests", message)
    response.headers["Retry-After"] = "1"
    return response


def _status(code: int, reason: str, message: str) -> web.Response:
    found: dict[str, Any] = status_object(code, reason, message)
    return _json(msgspec.json.encode(found), code)
