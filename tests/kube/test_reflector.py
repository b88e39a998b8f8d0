"""Lists and watches survive any object, and deliver all others."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from tests.operator.api_server import serving

from muster.errors import ClusterError
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster.kube.reflector import Reflector
from muster.kube.resources import TRAINING_JOBS

DEEP = b"[" * 20_000 + b"]" * 20_000


def plain(name: str, version: int) -> bytes:
    meta = {"name": name, "namespace": "team", "resourceVersion": str(version)}
    return json.dumps({"metadata": meta, "spec": {"queue": "research"}}).encode()


def monstrous(name: str, version: int) -> bytes:
    """Nested deeper than any decoder supports, in its spec and in its managedFields."""
    meta = f'"managedFields":[{{"fieldsV1":{DEEP.decode()}}}],"name":"{name}","namespace":"team"'
    text = f'{{"metadata":{{{meta},"resourceVersion":"{version}"}},"spec":{{"odd":{DEEP.decode()}}}}}'
    return text.encode()


def event(kind: str, item: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), item)


@dataclass
class Server:
    """An API server: its lists in order (the last one repeatedly), and the events of each watch."""

    lists: list[tuple[int, list[bytes]]]
    watches: list[bytes] = field(default_factory=list)
    rejected_watches: list[int] = field(default_factory=list)  # of watches, before any is opened
    asked_from: list[str] = field(default_factory=list)
    listed: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            version, items = self.lists[min(self.listed, len(self.lists) - 1)]
            self.listed += 1
            return web.Response(
                body=b'{"items":[%s],"metadata":{"resourceVersion":"%d"}}' % (b",".join(items), version)
            )
        self.asked_from.append(request.query["resourceVersion"])
        if self.rejected_watches:
            code = self.rejected_watches.pop(0)
            return web.json_response({"code": code, "message": "refused"}, status=code)
        response = web.StreamResponse()
        await response.prepare(request)
        if self.watches:
            await response.write(self.watches.pop(0))
        else:
            await asyncio.sleep(60)
        return response


class Seen:
    """A handler that fails for jobs of some names."""

    def __init__(self, *poison: str) -> None:
        self.poison = poison
        self.jobs: dict[str, int] = {}
        self.reached = 0

    def on_list(self, keys: set[str], version: int) -> None:
        names = {key.rpartition("/")[2] for key in keys}
        self.jobs = {name: known for name, known in self.jobs.items() if name in names}
        self.reached = version

    def on_upsert(self, item: RawCustomObject) -> None:
        if item.metadata.name in self.poison:
            raise KeyError("a bug")
        self.jobs[item.metadata.name] = item.metadata.version

    def on_delete(self, item: RawCustomObject) -> None:
        self.jobs.pop(item.metadata.name, None)

    def on_bookmark(self, version: int) -> None:
        self.reached = version


def reflect(server: Server, seen: Seen, condition: Callable[[], bool]) -> None:
    """Reflect until the condition holds. Fails if the reflector ends, or the condition never holds."""

    async def main() -> None:
        async def follow(api: AsyncKubeClient) -> None:
            reflector = Reflector(api, TRAINING_JOBS, RawCustomObject, seen)
            running = asyncio.create_task(reflector.run())
            async with asyncio.timeout(60):
                while not condition():
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.01)
            running.cancel()

        await serving(server, follow)

    asyncio.run(main())


def test_a_too_deep_object_hides_no_other_in_a_list() -> None:
    server = Server([(7, [plain("a", 1), monstrous("deep", 2), plain("b", 3)])])
    seen = Seen()
    reflect(server, seen, lambda: bool(server.asked_from))
    assert seen.jobs == {"a": 1, "deep": 2, "b": 3}
    assert server.asked_from[0] == "7"


def test_a_watch_continues_after_such_an_object_and_delivers_its_deletion() -> None:
    begin = event("ADDED", monstrous("deep", 8)) + event("ADDED", plain("a", 9))
    then = event("MODIFIED", monstrous("deep", 10)) + event("DELETED", monstrous("deep", 11))
    server, seen = Server([(7, [])], [begin, then]), Seen()
    reflect(server, seen, lambda: len(server.asked_from) == 3)
    assert seen.jobs == {"a": 9}
    assert server.asked_from == ["7", "9", "11"]
    assert server.listed == 1


def test_an_object_that_the_handler_rejects_hides_no_other() -> None:
    server = Server([(7, [plain("a", 1), plain("odd", 2), plain("b", 3)])])
    server.watches = [event("ADDED", plain("odd", 8)) + event("ADDED", plain("c", 9))]
    seen = Seen("odd")
    reflect(server, seen, lambda: len(server.asked_from) == 2)
    assert seen.jobs == {"a": 1, "b": 3, "c": 9}
    assert server.asked_from == ["7", "9"]


@pytest.mark.parametrize(
    "line",
    [
        event("ADDED", b'{"metadata":{"resourceVersion":8}}'),
        event("ADDED", b'{"metadata":{"resourceVersion":"x"}}'),
        event("BOOKMARK", b"[]"),
        event("DELETED", b'{"metadata":{"name":3,"resourceVersion":"8"}}'),
        event("ADDED", b"null"),
        event("ERROR", b"[5]"),
        event("ERROR", b"null"),
        b"no event\n",
        b"[]\n",
        b"null\n",
        b"7\n",
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n',
    ],
)
def test_an_event_without_version_causes_a_new_list(line: bytes) -> None:
    server = Server([(7, [plain("gone", 1)]), (12, [plain("a", 3)])], [line])
    seen = Seen()
    reflect(server, seen, lambda: len(server.asked_from) == 2)
    assert server.asked_from == ["7", "12"]
    assert seen.jobs == {"a": 3}


def test_an_answer_that_is_no_list_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    server = Server([(1, [b"<html>"]), (2, [b"<html>"]), (7, [plain("a", 3)])])
    seen = Seen()
    with caplog.at_level(logging.WARNING, "muster.kube"):
        reflect(server, seen, lambda: bool(server.asked_from))
    assert seen.jobs == {"a": 3}
    assert any("not a list" in str(vars(record).get("why")) for record in caplog.records)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of reflectors; they take no time."""
    made: list[float] = []

    async def pause(reflector: Reflector[RawCustomObject], pause_s: float) -> None:
        made.append(pause_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(Reflector, "_pause", pause)
    return made


def test_watches_that_end_at_once_are_reopened_with_backoff(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = Server([(7, [])], [b""] * 12)
    with caplog.at_level(logging.WARNING, "muster.kube"):
        reflect(server, Seen(), lambda: len(server.asked_from) == 13)
    assert len(pauses) == 11
    assert 0.05 <= pauses[0] <= 0.1
    assert all(5.0 <= pause_s <= 10.0 for pause_s in pauses[8:])
    assert server.listed == 1
    assert [str(vars(record)["why"]) for record in caplog.records] == ["the watch ended at once"] * 2


def test_an_expired_version_is_followed_by_a_list_at_once(
    pauses: list[float],
) -> None:
    server = Server([(7, []), (12, [plain("a", 3)])], rejected_watches=[500] * 8 + [410])
    seen = Seen()
    reflect(server, seen, lambda: server.asked_from[-1:] == ["12"])
    assert len(pauses) == 7, "none after the 410"
    assert (server.listed, seen.jobs) == (2, {"a": 3})


def test_repeatedly_expired_versions_are_followed_by_lists_with_backoff(pauses: list[float]) -> None:
    server = Server([(7, [])], rejected_watches=[410] * 4)
    reflect(server, Seen(), lambda: len(server.asked_from) == 5)
    assert (server.listed, len(pauses)) == (5, 2)


def test_an_outage_detected_by_another_request_causes_a_new_list() -> None:
    server, seen = Server([(7, [plain("gone", 1)]), (12, [plain("a", 3)])]), Seen()

    async def main() -> None:
        async def follow(api: AsyncKubeClient) -> None:
            reflector = Reflector(api, TRAINING_JOBS, RawCustomObject, seen)
            running = asyncio.create_task(reflector.run())
            async with asyncio.timeout(60):
                while server.asked_from != ["7"]:  # noqa: ASYNC110 - a condition of the server, not of ours
                    await asyncio.sleep(0.01)
                assert api.outages.is_synced()
                api.outages.record_unreachable()
                assert not api.outages.is_synced()
                assert api.outages.unsynced() == ["trainingjobs"]
                await api.outages.wait_until_synced()
                assert seen.jobs == {"a": 3}
            running.cancel()

        await serving(server, follow)

    asyncio.run(main())
    assert server.listed == 2


@dataclass
class Resetting(Server):
    """Resets the connection of every request for nodes, and answers everything else."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/nodes"):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return await super().answer(request)


def test_a_request_that_is_always_reset_causes_lists_with_backoff() -> None:
    server, paused_s = Resetting([(7, [])]), 0.0

    async def main() -> None:
        async def follow(api: AsyncKubeClient) -> None:
            nonlocal paused_s
            running = asyncio.create_task(Reflector(api, TRAINING_JOBS, RawCustomObject, Seen()).run())
            async with asyncio.timeout(60):
                for number in range(1, 6):
                    while len(server.asked_from) < number:  # noqa: ASYNC110 - a condition of the server, not of ours
                        await asyncio.sleep(0.01)
                    began = time.monotonic()
                    with pytest.raises(ClusterError):
                        await api.get("/api/v1/nodes")
                    await api.outages.wait_until_synced()
                    paused_s += time.monotonic() - began
            running.cancel()

        await serving(server, follow)

    asyncio.run(main())
    assert paused_s > 0.2 + 0.4 + 0.8
    assert server.listed == 6
