"""The record of usage in ConfigMaps: what is written, read and deleted, and what a write without success changes."""

from __future__ import annotations

import asyncio
import base64
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import new_queue, serve
from tests.operator.caches import new_cache
from tests.operator.objects import job_document, read

from muster.errors import ClusterError
from muster.kinds.trainingjob.adapter import training_jobs
from muster.kube.async_client import AsyncKubeClient
from muster.kube.objects import RawCustomObject
from muster.usage.record import UsageDocument, decode_jobs, decode_totals, encode
from muster.usage.report import UsagePeriod, usage_series
from muster.usage.segments import ChargedSegment, JobSegments, segments_of
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.cache.deleted_usage import DeletedUsage
from muster_operator.usage import config_maps, recorder
from muster_operator.usage.config_maps import LABEL, ConfigMapNames
from muster_operator.usage.recorder import UsageRecorder

DAY = 86_400.0
NOON = 20_000 * DAY + DAY / 2
TODAY = "op-usage-2024-10-04"
GPU = "nvidia.com/gpu"


class ConfigMaps:
    """An API server with ConfigMaps. `answers`: what the next writes do: written, refused, or lost after the write."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.answers: list[str] = []
        self.writes: list[str] = []
        self.lists = 0
        self._version = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        body = await request.json() if request.can_read_body else {}
        if request.method == "GET":
            self.lists += 1
            return self._list(request)
        what = self.answers.pop(0) if self.answers else "written"
        name = body["metadata"]["name"] if request.method == "POST" else name
        self.writes.append(f"{request.method} {name}")
        if what == "refused":
            return web.json_response({"code": 500, "reason": "InternalError", "message": "no"}, status=500)
        stored, given = self.items.get(name), body.get("metadata", {}).get("resourceVersion")
        if (request.method == "POST" and stored) or (given and given != stored["metadata"]["resourceVersion"]):  # type: ignore[index]
            return web.json_response({"code": 409, "reason": "Conflict", "message": "changed"}, status=409)
        self._version += 1
        if request.method == "DELETE":
            return web.json_response({"metadata": self.items.pop(name)["metadata"]})
        if stored is None:
            self.items[name] = stored = {"metadata": body["metadata"], "binaryData": {}}
        data = {**stored["binaryData"], **body["binaryData"]}
        stored["binaryData"] = {key: value for key, value in data.items() if value is not None}
        stored["metadata"] = {**stored["metadata"], "resourceVersion": str(self._version), "uid": name}
        if what == "lost":
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"metadata": stored["metadata"]})

    def _list(self, request: web.Request) -> web.Response:
        """Two to a page; only those with the label."""
        label, _, value = request.query["labelSelector"].partition("=")
        names = sorted(name for name, one in self.items.items() if one["metadata"]["labels"].get(label) == value)
        first = int(request.query.get("continue", "0"))
        more = str(first + 2) if len(names) > first + 2 else ""
        page = [self.items[name] for name in names[first : first + 2]]
        return web.json_response({"items": page, "metadata": {"continue": more}})

    def gpu_seconds(self) -> float:
        """The sum of all ConfigMaps."""
        found = 0
        for one in self.items.values():
            totals = decode_totals(base64.b64decode(one["binaryData"][config_maps.TOTALS]))
            found += sum(amount for key, _, amount in totals.cells() if key.resource == GPU)
        return found / 1000

    def jobs(self, name: str) -> tuple[dict[str, int], set[str]]:
        """Numbers, and uids of running jobs."""
        counted, running, _ = decode_jobs(base64.b64decode(self.items[name]["binaryData"][config_maps.JOBS]))
        return counted, set(running)


class Process:
    """An operator: a cache and a recorder."""

    def __init__(self, api: AsyncKubeClient, term: str | None = "a", retention_days: int = 400) -> None:
        self.now = NOON
        self.term = term
        self.wakeup = asyncio.Event()
        deleted_usage = DeletedUsage(lambda: self.now, self.wakeup.set)
        self.cache: ClusterCache = new_cache(deleted_usage=deleted_usage)[0]
        self.queue = new_queue(api, self.cache, lambda: self.now)
        names = ConfigMapNames("ns", "op")
        self.recorder = UsageRecorder(
            queue=self.queue,
            cache=self.cache,
            names=names,
            retention_days=retention_days,
            term=lambda: self.term,
            reads_as_standby=True,
            wakeup=self.wakeup,
            clock=lambda: self.now,
            interval_s=0.01,
        )

    def job(
        self, name: str, version: int, *ended: tuple[float, float], since: float | None = None, first: int = 0
    ) -> None:
        """A watch delivers a job of 8 GPUs. Times are seconds after noon."""
        segments = [segment(start, end) for start, end in ended]
        usage = {"first": first, "ended": segments, "current": None if since is None else segment(since, None)}
        status = {"usage": {key: value for key, value in usage.items() if value is not None}}
        if since is not None:
            status["conditions"] = [condition(since)]  # type: ignore[assignment]
        self.cache.jobs.on_upsert(read(RawCustomObject, {**job_document(name, version), "status": status}))

    def delete(self, name: str, version: int) -> None:
        self.cache.jobs.on_delete(read(RawCustomObject, job_document(name, version)))

    def gpu_seconds(self) -> float:
        """What a reader finds."""
        live = [
            found
            for job in training_jobs(self.cache.read_state().workloads)
            if (found := segments_of(job, self.now)) is not None
        ]
        everything = UsagePeriod(0, 10**6, "day")
        series = usage_series(self.recorder.recorded(), live, everything, "queue", lambda namespace: True)
        return sum(one.total for one in series if one.resource == GPU) / 1000


def text(after_noon: float) -> str:
    return datetime.fromtimestamp(NOON + after_noon, UTC).isoformat().replace("+00:00", "Z")


def segment(since: float, until: float | None) -> dict[str, Any]:
    found = {"queue": "research", "since": text(since), "flavors": [{"flavor": "f", "amounts": {GPU: "8"}}]}
    return found if until is None else {**found, "until": text(until)}


def condition(since: float) -> dict[str, Any]:
    return {"type": "Admitted", "status": "True", "reason": "Admitted", "lastTransitionTime": text(since)}


def test_ended_segments_are_counted_once_and_running_jobs_until_now() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        one.job("a", 1, (-100, -40), since=-20)
        await one.recorder.record()
        assert (server.gpu_seconds(), server.jobs(f"{TODAY}-0")) == (8 * 60, ({"uid-a": 1}, {"uid-a"}))
        assert server.items[f"{TODAY}-0"]["metadata"]["labels"] == {LABEL: "op"}
        one.now += 10
        await one.recorder.record()
        assert server.gpu_seconds() == 8 * 60
        assert one.gpu_seconds() == 8 * (60 + 30)
        one.job("a", 2, (-20, 5), first=1)  # the engine removed the first one
        await one.recorder.record()
        assert (server.gpu_seconds(), one.gpu_seconds()) == (8 * 85, 8 * 85)
        assert one.cache.observe().recorded_usage == {"uid-a": 2}

    serve(server, scenario)


def test_a_running_job_whose_status_cannot_be_read_for_a_while_has_not_ended() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        one.job("a", 1, since=-20)
        await one.recorder.record()
        unreadable = {**job_document("a", 2), "status": {"conditions": "of another version"}}
        one.cache.jobs.on_upsert(read(RawCustomObject, unreadable))
        one.now += 10
        one.job("b", 3, (-900, -800))
        await one.recorder.record()
        assert server.jobs(f"{TODAY}-0") == ({"uid-b": 1}, {"uid-a"})
        one.job("a", 4, since=-20)
        one.now += 30
        await one.recorder.record()
        assert one.gpu_seconds() == 8 * (60 + 100)
        one.job("a", 5, (-20, 50))
        await one.recorder.record()
        assert server.gpu_seconds() == one.gpu_seconds() == 8 * (70 + 100)

    serve(server, scenario)


def test_nothing_is_written_where_nothing_changed() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        await one.recorder.record()
        one.job("a", 1, (-100, -40))
        for _ in range(3):
            await one.recorder.record()

    serve(server, scenario)
    assert server.writes == [f"POST {TODAY}-0"]


@pytest.mark.parametrize("answer", ["refused", "lost"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_write_without_success_is_repeated_and_counts_nothing_twice(answer: str, at: int) -> None:
    """The creation of the ConfigMap, or a later change."""
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        if at == 1:
            one.job("old", 1, (-900, -800))
            await one.recorder.record()
        server.answers = [answer]
        one.job("a", 2, (-100, -40))
        await _attempt(one)
        assert one.gpu_seconds() == 8 * (60 + 100 * at)
        one.now += 60  # past the pause of the object
        await _attempt(one)
        await _attempt(one)
        assert server.gpu_seconds() == one.gpu_seconds() == 8 * (60 + 100 * at)

    serve(server, scenario)


async def _attempt(one: Process) -> None:
    """As the loop, which reads everything again after an error."""
    try:
        await one.recorder.record()
    except ClusterError:
        one.recorder._loaded_for = None


def test_of_two_operators_only_one_succeeds_and_the_other_reads_again() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        old, new = Process(api), Process(api, "b")
        for one in (old, new):
            one.job("a", 1, (-100, -40))
        await old.recorder.record()
        for one in (old, new):
            one.job("a", 2, (-100, -40), (-30, -10))
        await new.recorder.record()
        with pytest.raises(ClusterError, match="was not written"):
            await old.recorder.record()
        old.recorder._loaded_for = None
        assert server.gpu_seconds() == 8 * 80
        old.now += 60
        await old.recorder.record()
        assert server.gpu_seconds() == old.gpu_seconds() == new.gpu_seconds() == 8 * 80

    serve(server, scenario)


def test_a_deleted_job_counts_until_its_deletion() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one, standby = Process(api), Process(api, None)
        for process in (one, standby):
            process.job("a", 1, (-100, -40), since=-20)
        await one.recorder.record()
        for process in (one, standby):
            process.now += 10
            process.delete("a", 2)
            assert process.gpu_seconds() == 8 * 90 if process is one else True
            process.now += 10
        await one.recorder.record()
        assert server.gpu_seconds() == one.gpu_seconds() == 8 * (60 + 30)
        assert standby.gpu_seconds() == 8 * 90  # it has not read the record yet
        await standby.recorder._read_as_standby()
        assert standby.gpu_seconds() == 8 * 90
        for process in (one, standby):
            process.now += 400
        await standby.recorder._read_as_standby()
        assert standby.gpu_seconds() == 8 * 90
        for _ in range(3):
            one.now += 400
            one.job("b", int(one.now), (0, one.now - NOON))
            await one.recorder.record()
        assert set(server.jobs(f"{TODAY}-0")[0]) == {"uid-b"}  # the number of the deleted job was dropped

    serve(server, scenario)


def test_a_job_deleted_while_no_operator_ran_counts_until_it_was_last_recorded() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        one.job("a", 1, (-100, -40), since=-20)
        one.now += 5
        await one.recorder.record()
        other = Process(api, "b")
        other.now += 3000
        other.job("b", 1, since=2990)
        await other.recorder.record()
        assert server.gpu_seconds() == 8 * (60 + 25)
        assert other.gpu_seconds() == 8 * (60 + 25 + 10)
        await other.recorder.record()
        assert server.gpu_seconds() == 8 * (60 + 25)

    serve(server, scenario)


def test_a_running_job_that_a_new_operator_cannot_read_goes_on_counting() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one, other = Process(api), Process(api, "b")
        one.job("a", 1, since=-20)
        await one.recorder.record()
        document = job_document("a", 2)
        document["spec"]["roles"] = "invalid"
        status = {"conditions": [condition(-20)], "usage": {"current": segment(-20, None)}}
        other.cache.jobs.on_upsert(read(RawCustomObject, {**document, "status": status}))
        other.now += 100
        await other.recorder.record()
        other.job("a", 3, (-20, 200))
        await other.recorder.record()
        assert server.gpu_seconds() == 8 * 220

    serve(server, scenario)


def test_the_next_day_and_a_full_document_begin_a_new_one_and_old_ones_are_deleted() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api, retention_days=1)
        one.job("a", 1, (-100, -40))
        await one.recorder.record()
        one.now += DAY
        one.job("a", 2, (-100, -40), (1, 11))
        await one.recorder.record()
        assert list(server.items) == [f"{TODAY}-0", "op-usage-2024-10-05-0"]
        assert config_maps.JOBS not in server.items[f"{TODAY}-0"]["binaryData"]
        assert server.gpu_seconds() == one.gpu_seconds() == 8 * 70
        most, one.recorder.max_bytes = one.recorder.max_bytes, one.recorder._size + 10  # a row of sums more is too much
        one.job("a", 3, (-100, -40), (1, 11), (DAY, DAY + 7200))
        await one.recorder.record()
        assert list(server.items)[-1] == "op-usage-2024-10-05-1"
        assert server.gpu_seconds() == one.gpu_seconds() == 8 * (70 + 7200)
        other = Process(api, "b", retention_days=1)  # reads three documents, in two pages
        await other.recorder._read_as_standby()
        assert other.gpu_seconds() == 8 * (70 + 7200)
        one.recorder.max_bytes = most
        one.now += DAY
        one.job("a", 4, (DAY, DAY + 7200), (2 * DAY, 2 * DAY + 1), first=2)
        await one.recorder.record()
        assert list(server.items) == ["op-usage-2024-10-05-0", "op-usage-2024-10-05-1", "op-usage-2024-10-06-0"]

    serve(server, scenario)


def test_a_finished_job_is_removed_only_once_its_usage_is_recorded_unless_that_fails() -> None:
    server = ConfigMaps()

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        one.job("a", 1, (-100, -40))
        known = one.cache.jobs.get("uid-a")
        assert known is not None
        assert not one.recorder.may_remove(known)
        server.answers = ["refused"]
        running = asyncio.create_task(one.recorder.run())
        try:
            await _until(lambda: f"POST {TODAY}-0" in server.writes)
            one.now += 60
            await _until(lambda: one.recorder.may_remove(known))
            assert server.gpu_seconds() == 8 * 60
        finally:
            running.cancel()
        broken = Process(api)
        broken.job("b", 1, (-100, -40))
        other = broken.cache.jobs.get("uid-b")
        assert other is not None
        server.items[f"{TODAY}-0"]["binaryData"][config_maps.TOTALS] = "AAAA"
        running = asyncio.create_task(broken.recorder.run())
        try:
            await _until(lambda: broken.recorder.may_remove(other))
        finally:
            running.cancel()
        assert broken.gpu_seconds() == 8 * 60

    serve(server, scenario)


def test_a_defect_of_the_record_does_not_keep_finished_jobs_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise ValueError("a defect")

    monkeypatch.setattr(recorder, "next_document", fail)

    async def scenario(api: AsyncKubeClient) -> None:
        one = Process(api)
        one.job("a", 1, (-100, -40))
        known = one.cache.jobs.get("uid-a")
        assert known is not None
        for _ in range(3):  # its supervisor begins it again
            assert not one.recorder.may_remove(known)
            with pytest.raises(ValueError, match="a defect"):
                await one.recorder.run()
        assert one.recorder.may_remove(known)

    serve(ConfigMaps(), scenario)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


def test_names_of_other_config_maps_are_not_read() -> None:
    names = ConfigMapNames("ns", "op")
    assert names.key(names.name(20_000, 3)) == (20_000, 3)
    assert [names.key(name) for name in ("op-usage-2024-13-01-0", "op-usage-x", "other-usage-2024-10-04-0")] == [
        None
    ] * 3


def test_15_000_jobs_of_a_day_and_2_000_running_ones_fit_into_one_document() -> None:
    """uids as Kubernetes makes them, which do not compress."""
    rng = random.Random(0)
    amounts = ((("h200", GPU), 8), (("h200", "cpu"), 96_000))
    start = int(NOON * 1000)
    jobs = []
    for number in range(15_000):
        one = ChargedSegment(
            f"team-{number % 40}", f"queue-{number % 20}", f"user-{number % 200}", start, start + 600_000, amounts
        )
        current = one if number < 2_000 else None
        jobs.append(JobSegments(str(uuid.UUID(int=rng.getrandbits(128), version=4)), 0, (one,), current))
    encoded = encode(UsageDocument(20_000).updated(jobs, []))
    assert encoded.size < config_maps.MAX_BYTES


def test_of_the_labels_of_a_job_its_user_is_kept() -> None:
    cache = new_cache()[0]
    document = job_document("a")
    document["metadata"]["labels"] = {"muster.dev/user": "ann", "other": "x"}
    cache.jobs.on_upsert(read(RawCustomObject, document))
    known = cache.jobs.get("uid-a")
    assert known is not None
    assert known.job.metadata.labels == {"muster.dev/user": "ann"}
