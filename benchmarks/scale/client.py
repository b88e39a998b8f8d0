"""A client of the API server that costs as little CPU as possible, since it shares the machine with what is measured.

HTTP/1.1 over a fixed number of connections; bodies are sent as they are, answers are read as far as needed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

BRIEF = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_LIMIT = 16 * 1024 * 1024


class Failed(Exception):
    """The API server's answer was no success."""


@dataclass(frozen=True, slots=True)
class Request:
    """A POST to a collection. `then` is sent once it was acknowledged, before what comes after it."""

    path: str
    body: bytes
    then: tuple[Request, ...] = ()


class Client:
    """Calls as one user. `connections` are used for `create_all`; watches have connections of their own."""

    def __init__(self, server: str, authority: Path, token: str, connections: int = 48) -> None:
        parts = urlsplit(server)
        self._host, self._port = str(parts.hostname), int(parts.port or 443)
        self._tls = ssl.create_default_context(cafile=str(authority))
        self._head = f"Host: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._connections = connections

    async def create_all(self, requests: Iterable[Request]) -> None:
        """Send all, in order, over all connections; returns when the last is acknowledged. Raises Failed."""
        left: asyncio.LifoQueue[Request] = asyncio.LifoQueue()
        _put(left, list(requests))
        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(self._send_from(left)) for _ in range(self._connections)]
            await left.join()
            for sender in senders:
                sender.cancel()

    async def create_timed(self, requests: Sequence[tuple[float, Request]]) -> float:
        """Send each so many seconds from now; seconds until the last was acknowledged. Raises Failed."""
        began, left = time.monotonic(), iter(requests)

        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for at_s, request in left:
                await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
                await self._post(reader, writer, request)
            writer.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(self._connections):
                group.create_task(send(*await self._open()))
        return time.monotonic() - began

    async def _send_from(self, left: asyncio.LifoQueue[Request]) -> None:
        """Until cancelled."""
        reader, writer = await self._open()
        try:
            while True:
                request = await left.get()
                await self._post(reader, writer, request)
                _put(left, request.then)
                left.task_done()
        finally:
            writer.close()

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> None:
        writer.write(self._written("POST", request.path, request.body))
        code, answer = await _answer(reader)
        if code not in (200, 201):
            raise Failed(f"POST {request.path}: {code} {answer[:500].decode(errors='replace')}")

    async def get(self, path: str) -> bytes:
        """A GET. Raises Failed."""
        reader, writer = await self._open()
        try:
            writer.write(self._written("GET", path, b"", accept="application/json"))
            code, answer = await _answer(reader)
        finally:
            writer.close()
        if code != 200:
            raise Failed(f"GET {path}: {code} {answer[:500].decode(errors='replace')}")
        return answer

    async def watch(self, path: str, version: str) -> AsyncIterator[bytes]:
        """The lines of a watch from a version on, until cancelled. Raises Failed."""
        reader, writer = await self._open()
        try:
            target = f"{path}?watch=1&resourceVersion={version}&timeoutSeconds=7200"
            writer.write(self._written("GET", target, b"", accept="application/json"))
            head = await reader.readuntil(b"\r\n\r\n")
            if int(head[9:12]) != 200:
                raise Failed(f"watch of {path}: {head.decode(errors='replace')}")
            rest = b""
            async for chunk in _chunks(reader):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        finally:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT)

    def _written(self, verb: str, path: str, body: bytes, accept: str = BRIEF) -> bytes:
        head = f"{verb} {path} HTTP/1.1\r\n{self._head}Accept: {accept}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode() + body


def _put(left: asyncio.LifoQueue[Request], requests: Sequence[Request]) -> None:
    """So that they come next, the first of them first."""
    for request in reversed(requests):
        left.put_nowait(request)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    code = int(head[9:12])
    lower = head.lower()
    if (at := lower.find(b"\r\ncontent-length:")) >= 0:
        length = int(lower[at + 17 : lower.index(b"\r\n", at + 17)])
        return code, await reader.readexactly(length)
    return code, b"".join([chunk async for chunk in _chunks(reader)])


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an answer in chunks."""
    while size := int((await reader.readline()).partition(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
