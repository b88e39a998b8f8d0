"""The port without a login: however often it is asked, the operator's time is its own."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from muster_operator.connections import ConnectionLimit
from muster_operator.server import _MAX_OPEN, Kept, OperatorServer, ServerCallbacks
from muster_operator.settings import ListenAddresses


def test_what_is_asked_for_all_the_time_is_made_a_tenth_of_the_time() -> None:
    now, made = [0.0], list[float]()

    def make() -> int:
        made.append(now[0])
        now[0] += 0.5
        return len(made)

    kept = Kept(make, lambda: now[0])
    answers = []
    while now[0] < 20.0:
        answers.append(kept.get())
        now[0] += 0.1
    assert len(made) == 4
    assert answers[0] == 1
    assert answers[-1] == 4


def server(rows: int, limit: ConnectionLimit | None = None) -> OperatorServer:
    """With so many waiting jobs in two namespaces."""
    waiting = [{"namespace": f"n{number % 2}", "name": f"j{number}"} for number in range(rows)]
    return OperatorServer(ServerCallbacks(lambda: b"a 1\n", str, str, lambda: iter(waiting), lambda: None), limit)


async def port_of(started: OperatorServer) -> int:
    await started.start(ListenAddresses("127.0.0.1:0", "127.0.0.1:0"))
    return int(started._runners[0].addresses[0][1])


def test_positions_are_those_of_a_namespace_or_of_all() -> None:
    async def scenario() -> None:
        started = server(5)
        base = f"http://127.0.0.1:{await port_of(started)}"
        async with aiohttp.ClientSession() as client:
            names = []
            for query in ("", "?namespace=n1", "?namespace=none"):
                async with client.get(f"{base}/positions{query}") as answer:
                    assert answer.content_type == "application/json"
                    names.append([row["name"] for row in json.loads(await answer.read())["items"]])
            async with client.get(f"{base}/metrics") as answer:
                assert (answer.status, await answer.text()) == (200, "a 1\n")
        await started.stop()
        assert names == [["j0", "j1", "j2", "j3", "j4"], ["j1", "j3"], []]

    asyncio.run(scenario())


def test_clients_that_do_not_read_leave_probes_to_others_and_get_no_more_memory() -> None:
    async def scenario() -> None:
        started = server(400_000)  # an answer is larger than what sockets take
        port = await port_of(started)
        writers = []
        for _ in range(_MAX_OPEN):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(b"GET /positions HTTP/1.1\r\nHost: a\r\n\r\n")
            writers.append(writer)
        while started._open < _MAX_OPEN:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as client:
            for path, status in (("/positions", 503), ("/metrics", 503), ("/healthz", 200), ("/readyz", 200)):
                async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
                    assert answer.status == status
            for writer in writers:
                writer.transport.abort()
            while started._open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            async with client.get(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.status == 200
        await started.stop()

    asyncio.run(scenario())


async def status_of(port: int, path: str = "/healthz") -> int:
    """The answer on a connection of its own."""
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status


async def opened(port: int, count: int, sends: bytes = b"") -> list[asyncio.StreamReader]:
    """So many connections that stay open, and have sent this."""
    readers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sends)
        OPEN.append(writer)
        readers.append(reader)
    return readers


OPEN: list[asyncio.StreamWriter] = []  # a writer that is collected closes its connection


@pytest.mark.parametrize("sends", [b"", b"GET /healthz HTTP/1.1\r\nHost: "], ids=["nothing", "half of a request"])
def test_connections_without_a_request_are_bounded_and_probes_are_answered(sends: bytes) -> None:
    async def scenario() -> None:
        started = server(1, limit := ConnectionLimit(most=20))
        port = await port_of(started)
        first, *_ = await opened(port, 100, sends)
        assert await status_of(port) == 200
        assert await first.read() == b"", "the one that was idle for the longest is closed"
        assert limit.count <= 20
        await started.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("sends", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["nothing", "a request"])
def test_connections_that_are_idle_for_long_are_closed(sends: bytes) -> None:
    async def scenario() -> None:
        started = server(1, limit := ConnectionLimit(idle_s=0.2))
        port = await port_of(started)
        async with asyncio.timeout(60):
            answers = [await reader.read() for reader in await opened(port, 3, sends)]
            while limit.count:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
        assert [one.startswith(b"HTTP/1.1 200") for one in answers] == [bool(sends)] * 3
        assert await status_of(port) == 200
        await started.stop()

    asyncio.run(scenario())


def test_where_all_connections_have_a_request_a_new_one_is_closed() -> None:
    async def scenario() -> None:
        started = server(400_000, limit := ConnectionLimit(most=4))
        port = await port_of(started)
        await opened(port, 4, b"GET /positions HTTP/1.1\r\nHost: a\r\n\r\n")
        while started._open < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        (reader,) = await opened(port, 1)
        assert await reader.read() == b""
        assert limit.count == 4
        for writer in OPEN[-5:]:
            writer.transport.abort()
        while limit.count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await status_of(port) == 200
        await started.stop()

    asyncio.run(scenario())
