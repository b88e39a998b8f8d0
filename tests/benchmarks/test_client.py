import asyncio

from benchmarks.scale.client import Client, Request


class Recorder(Client):
    """Keeps what would be sent, and answers as slowly as a busy server."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self.log: list[str] = []
        self.busy = self.busiest = 0

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        class Writer:
            def close(self) -> None: ...

        return asyncio.StreamReader(), Writer()  # type: ignore[return-value]

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request) -> None:
        self.log.append(f"send {request.path}")
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        for _ in range(5):
            await asyncio.sleep(0)
        self.busy -= 1
        self.log.append(f"done {request.path}")


def group(name: str, pods: int) -> Request:
    return Request(name, b"", tuple(Request(f"{name}-{index}", b"") for index in range(pods)))


def test_what_follows_is_sent_over_all_connections_once_the_first_is_acknowledged() -> None:
    client = Recorder(connections=4)

    asyncio.run(client.create_all([group("a", 8)]))

    assert client.log[:2] == ["send a", "done a"]
    assert sum(line.startswith("done") for line in client.log) == 9
    assert client.busiest == 4


def test_requests_are_sent_in_order_and_what_follows_comes_before_the_next() -> None:
    client = Recorder(connections=1)

    asyncio.run(client.create_all([group("a", 2), group("b", 1), group("c", 0)]))

    assert [line for line in client.log if line.startswith("send")] == [
        "send a", "send a-0", "send a-1", "send b", "send b-0", "send c",
    ]  # fmt: skip


def test_nothing_to_send_ends_at_once() -> None:
    client = Recorder(connections=2)

    asyncio.run(client.create_all([]))

    assert client.log == []
