"""The operator's read API: who is answered, what each user sees, bounds, and changes of certificates."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from tests.cluster.controlplane.certificates import Authority, Issued
from tests.operator.read_api import HOST, PROXY, ReadApi, serving, until
from tests.state.observed_states import admitted, named
from tests.visibility.states import in_namespace, leader, two_queues

from muster.errors import ClusterError, NotFound
from muster.heartbeats.parse import StepPoint
from muster.local.service import ChangeNotifier, DaemonService
from muster.model import Wait
from muster.usage.report import RecordedUsage
from muster.visibility.state import ReadState
from muster.visibility.types import BASE_PATH
from muster_operator.visibility import server
from muster_operator.visibility.access import AccessReviewer
from muster_operator.visibility.request_header import RequestHeaderConfig

JOBS = (in_namespace(admitted("a"), "mine"), in_namespace(named("b"), "theirs"), in_namespace(named("c"), "mine"))
WAITS = {"b": Wait("b", "QuotaExceeded", "no quota", 1), "c": Wait("c", "QuotaExceeded", "no quota", 2)}
LIST = "trainingjobs"


def state() -> ReadState:
    return leader(two_queues(*JOBS), WAITS)


def test_a_user_sees_the_jobs_of_the_namespaces_that_the_user_may_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, "mine"), ("root", LIST, "")) as api:
            alice = await api.get(f"{BASE_PATH}/jobs")
            assert (alice.code, alice.names, alice.body["metadata"]["remainingItemCount"]) == (200, ["a", "c"], 0)
            assert (await api.get(f"{BASE_PATH}/pendingjobs")).names == ["c"]
            assert (await api.get(f"{BASE_PATH}/namespaces/theirs/jobs")).names == []
            hidden = await api.get(f"{BASE_PATH}/namespaces/theirs/jobs/b")
            missing = await api.get(f"{BASE_PATH}/namespaces/theirs/jobs/none")
            assert (hidden.code, missing.code) == (404, 404)
            assert hidden.body["message"].replace("'b'", "'none'") == missing.body["message"]
            assert (await api.get(f"{BASE_PATH}/jobs", "root")).names == ["a", "c", "b"]
            assert (await api.get(f"{BASE_PATH}/jobs", "unnamed")).names == []

    asyncio.run(run())


@pytest.mark.parametrize("plural", ["queues", "nodes"])
def test_queues_and_nodes_need_the_right_to_list_them(tmp_path: Path, plural: str) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", plural, "")) as api:
            assert (await api.get(f"{BASE_PATH}/{plural}")).names
            refused = await api.get(f"{BASE_PATH}/{plural}", "bob")
            assert (refused.code, refused.body["reason"], refused.body["kind"]) == (403, "Forbidden", "Status")
            assert f"'bob' cannot list {plural}" in refused.body["message"]

    asyncio.run(run())


def test_a_header_counts_only_with_the_certificate_of_the_proxy(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("root", LIST, "")) as api:
            with pytest.raises(aiohttp.ClientError):
                await api.get_without_certificate(f"{BASE_PATH}/jobs", "root")
            stranger = Authority(tmp_path / "stranger").issue(PROXY)
            with pytest.raises(aiohttp.ClientError):
                await api.get(f"{BASE_PATH}/jobs", "root", certificate=stranger)
            other = await api.get(f"{BASE_PATH}/jobs", "root", certificate=api.api.authority.issue("another-client"))
            assert (other.code, other.body["reason"]) == (401, "Unauthorized")
            unnamed = await api.get(f"{BASE_PATH}/jobs", "")
            assert (unnamed.code, unnamed.body["reason"]) == (401, "Unauthorized")
            assert api.api.reviews == []
            assert (await api.get(f"{BASE_PATH}/jobs", "root")).code == 200

    asyncio.run(run())


def test_the_user_is_reviewed_with_groups_and_extra_fields(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state) as api:
            headers = {"X-Remote-Group": "team", "X-Remote-Extra-Scopes%2Fa": "x"}
            await api.get(f"{BASE_PATH}/namespaces/mine/jobs", headers=headers)
            (spec,) = api.api.specs
            assert (spec["user"], spec["groups"], spec["extra"]) == ("alice", ["team"], {"scopes/a": ["x"]})

    asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "path", "code", "reason"),
    [
        ("POST", f"{BASE_PATH}/jobs", 405, "MethodNotAllowed"),
        ("GET", f"{BASE_PATH}/jobs?limit=x", 400, "BadRequest"),
        ("GET", f"{BASE_PATH}/pods", 404, "NotFound"),
        ("GET", "/metrics", 404, "NotFound"),
        ("GET", f"{BASE_PATH}/queues/none", 404, "NotFound"),
    ],
)
def test_other_requests_are_refused_with_a_status(
    tmp_path: Path, method: str, path: str, code: int, reason: str
) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", "queues", "")) as api:
            found = await api.get(path, method=method)
            assert (found.code, found.body["reason"], found.body["code"]) == (code, reason, code)

    asyncio.run(run())


def test_without_an_answer_about_rights_or_before_all_is_listed_nothing_is_shown(tmp_path: Path) -> None:
    def unsynced() -> ReadState:
        raise ClusterError("not listed yet: pods")

    async def run(state: Callable[[], ReadState], fails: bool) -> str:
        async with serving(tmp_path, state, ("alice", LIST, "")) as api:
            api.api.fails = fails
            found = await api.get(f"{BASE_PATH}/jobs")
            assert (found.code, found.body["reason"]) == (503, "ServiceUnavailable")
            return str(found.body["message"])

    assert asyncio.run(run(state, True)) == "the API server does not answer"
    assert asyncio.run(run(unsynced, False)) == "not listed yet: pods"


def test_requests_beyond_the_limit_are_answered_with_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, held = threading.Event(), threading.Semaphore(0)
    encode = server._encode

    def slow(*arguments: Any) -> bytes:
        held.release()
        assert go.wait(60)
        return encode(*arguments)

    monkeypatch.setattr(server, "_encode", slow)

    async def run() -> None:
        rights = [(user, LIST, "") for user in ("alice", "bob", "carol")]
        async with serving(tmp_path, state, *rights, max_open=3, max_open_per_user=2) as api:
            first = []
            for user, refused_user, message in (("alice", "", ""), ("alice", "alice", "2"), ("bob", "carol", "3")):
                first.append(asyncio.create_task(api.get(f"{BASE_PATH}/jobs", user)))
                await asyncio.to_thread(held.acquire)
                if refused_user:
                    refused = await api.get(f"{BASE_PATH}/jobs", refused_user)
                    assert (refused.code, refused.body["reason"], refused.headers["Retry-After"]) == (
                        429, "TooManyRequests", "1",
                    )  # fmt: skip
                    assert refused.body["message"].startswith(f"{message} requests")
            go.set()
            assert [(await task).code for task in first] == [200, 200, 200]
            for user, _, _ in rights:
                assert (await api.get(f"{BASE_PATH}/jobs", user)).code == 200

    asyncio.run(run())


def test_an_answer_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: object, user: object, permission: object) -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(AccessReviewer, "is_allowed", never)

    async def run() -> None:
        async with serving(tmp_path, state, timeout_s=0.05) as api:
            found = await api.get(f"{BASE_PATH}/jobs")
            assert (found.code, found.body["reason"]) == (504, "Timeout")

    asyncio.run(run())


def test_answers_that_were_given_up_keep_no_more_than_four_threads_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, encode, threads = threading.Event(), server._encode, list[str]()

    def slow(*arguments: Any) -> bytes:
        threads.append(threading.current_thread().name)
        assert go.wait(60)
        return encode(*arguments)

    monkeypatch.setattr(server, "_encode", slow)

    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), timeout_s=0.3) as api:
            try:
                for _ in range(2):
                    found = await asyncio.gather(*(api.get(f"{BASE_PATH}/jobs") for _ in range(4)))
                    assert {one.code for one in found} == {504}
                assert 1 <= len(threads) <= 4
            finally:
                go.set()
            await until(partial(_is_served, api, api.proxy))
            assert {name.split("_")[0] for name in threads} == {"read-api"}

    asyncio.run(run())


def test_a_user_of_some_of_very_many_namespaces_must_name_one(tmp_path: Path) -> None:
    rights = ("alice", LIST, "mine"), ("alice", "nodes", ""), ("root", LIST, "")

    async def run() -> None:
        async with serving(tmp_path, state, *rights, max_namespaces=1) as api:
            refused = await api.get(f"{BASE_PATH}/jobs")
            assert (refused.code, refused.body["reason"]) == (403, "Forbidden")
            assert "name a namespace" in refused.body["message"]
            assert api.api.reviews == [("alice", LIST, "")]
            assert (await api.get(f"{BASE_PATH}/namespaces/mine/jobs")).names == ["a", "c"]
            nodes = await api.get(f"{BASE_PATH}/nodes")
            assert (nodes.code, [node["pods"] for node in nodes.body["items"]]) == (200, [[], []])
            assert (await api.get(f"{BASE_PATH}/jobs", "root")).names == ["a", "c", "b"]

    asyncio.run(run())


def test_kubectl_finds_the_resources_and_gets_tables(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), ("alice", "queues", "")) as api:
            found = await api.get(BASE_PATH)
            assert {one["name"]: one["namespaced"] for one in found.body["resources"]} == {
                "queues": False, "nodes": False, "jobs": True, "curves": True, "pendingjobs": True,
                "preemptions": True, "usage": True,
            }  # fmt: skip
            (group,) = (await api.get("/apis")).body["groups"]
            assert group["preferredVersion"]["groupVersion"] == "visibility.muster.dev/v1alpha1"
            (document,) = (await api.get("/openapi/v3")).body["paths"].values()
            assert (await api.get(document["serverRelativeURL"])).body["openapi"] == "3.0.0"
            accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
            table = (await api.get(f"{BASE_PATH}/pendingjobs?limit=1", headers=accept)).body
            (row,) = table["rows"]
            assert (table["kind"], row["cells"][:3], row["object"]["metadata"]["namespace"]) == (
                "Table", ["c", "default", "2"], "mine",
            )  # fmt: skip
            assert table["metadata"]["continue"]
            for plural in ("queues", "jobs", "preemptions", "namespaces/mine/jobs/a"):
                body = (await api.get(f"{BASE_PATH}/{plural}", headers=accept)).body
                assert body["kind"] == "Table"
                assert all(len(row["cells"]) == len(body["columnDefinitions"]) for row in body["rows"])

    asyncio.run(run())


def test_new_certificates_are_served_without_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), refresh_s=0.02) as api:
            api.server_authority = Authority(tmp_path / "new-own")
            api.server_authority.issue("serving", HOST, folder=tmp_path / "tls")
            api.api.authority = Authority(tmp_path / "new-proxy")
            old, api.proxy = api.proxy, api.api.authority.issue(PROXY)

            await until(partial(_is_served, api, api.proxy))
            with pytest.raises(aiohttp.ClientError):
                await api.get(f"{BASE_PATH}/jobs", certificate=old)

    asyncio.run(run())


def test_an_open_connection_ends_once_the_ca_of_its_certificate_is_withdrawn(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), refresh_s=0.02) as api, api.kept_connection() as get:
            assert await get(f"{BASE_PATH}/jobs") == 200
            api.api.authority = Authority(tmp_path / "new-proxy")
            await until(partial(_is_served, api, api.api.authority.issue(PROXY)))
            with pytest.raises(aiohttp.ClientError):
                await get(f"{BASE_PATH}/jobs")

    asyncio.run(run())


def test_an_open_connection_goes_on_after_a_new_certificate_of_the_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), refresh_s=0.02) as api, api.kept_connection() as get:
            assert await get(f"{BASE_PATH}/jobs") == 200
            api.server_authority = Authority(tmp_path / "new-own")
            api.server_authority.issue("serving", HOST, folder=tmp_path / "tls")
            await until(partial(_is_served, api, api.proxy))
            assert await get(f"{BASE_PATH}/jobs") == 200

    asyncio.run(run())


async def _is_served(api: ReadApi, certificate: Issued) -> bool:
    """Whether a new connection with this certificate is accepted."""
    try:
        return (await api.get(f"{BASE_PATH}/jobs", certificate=certificate)).code == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize(
    "config",
    [
        b"<html>",
        b"\xff",
        b'{"data": []}',
        b'{"data": {"requestheader-client-ca-file": "x", "requestheader-username-headers": "[\\"a\\"]"}}',
        '{"data": {"requestheader-client-ca-file": "é", "requestheader-username-headers": "[\\"a\\"]"}}'.encode(),
    ],
)
def test_a_config_map_that_cannot_be_read_changes_nothing(tmp_path: Path, config: bytes) -> None:
    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, ""), refresh_s=0.02) as api:
            api.api.config = config
            reads = api.api.config_reads

            async def read_twice() -> bool:
                return api.api.config_reads >= reads + 2

            await until(read_twice, api.task)
            assert (await api.get(f"{BASE_PATH}/jobs")).code == 200

    asyncio.run(run())


def test_the_curve_of_a_job_is_read_for_those_who_may_read_the_job(tmp_path: Path) -> None:
    uids: list[str] = []

    async def read_curve(uid: str) -> list[StepPoint]:
        uids.append(uid)
        if uid == "b":
            raise ClusterError("no answer within 3 s", reason="CollectorUnreachable")
        if uid == "c":
            raise NotFound("no pod with a collector runs", reason="NoCollector")
        return [(1, 5.0, None), (2, None, 0.5)]

    async def run() -> None:
        async with serving(tmp_path, state, ("alice", LIST, "mine"), ("root", LIST, ""), read_curve=read_curve) as api:
            found = await api.get(f"{BASE_PATH}/namespaces/mine/curves/a")
            assert (found.code, found.body["kind"], found.body["metadata"]["name"]) == (200, "JobCurve", "a")
            assert found.body["points"] == [{"step": 1, "loss": 5.0}, {"step": 2, "stepSeconds": 0.5}]
            accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
            (row,) = (await api.get(f"{BASE_PATH}/namespaces/mine/curves/a", headers=accept)).body["rows"]
            assert row["cells"] == ["a", "2", "5"]
            uids.clear()
            for path in ("theirs/curves/b", "mine/curves/none", "mine/curves"):
                assert (await api.get(f"{BASE_PATH}/namespaces/{path}")).code == 404
            assert uids == []
            silent = await api.get(f"{BASE_PATH}/namespaces/theirs/curves/b", "root")
            assert (silent.code, silent.body["message"]) == (503, "no answer within 3 s")
            without = await api.get(f"{BASE_PATH}/namespaces/mine/curves/c", "root")
            assert (without.code, without.body["reason"]) == (404, "NoCollector")

    asyncio.run(run())


def test_the_daemon_reads_the_curve_from_the_run_folder(tmp_path: Path) -> None:
    shown = state()
    cluster = SimpleNamespace(
        read_state=lambda: shown.observed, lock=threading.RLock(), run_dir=lambda job: tmp_path / job.metadata.name
    )
    unused = cast(Any, None)
    daemon = DaemonService(unused, unused, cast(Any, cluster), unused, ChangeNotifier())
    url = f"{BASE_PATH}/namespaces/mine/curves/a"
    assert json.loads(daemon.read(url).model_dump_json(by_alias=True))["points"] == []
    (tmp_path / "a" / "metrics").mkdir(parents=True)
    (tmp_path / "a" / "metrics" / "rank-0.jsonl").write_text('{"step": 3, "loss": 2.5}\n')
    assert [point["loss"] for point in daemon.read(url).model_dump()["points"]] == [2.5]
    with pytest.raises(NotFound):
        daemon.read(f"{BASE_PATH}/namespaces/mine/curves/none")


def test_the_answers_of_daemon_and_operator_are_equal(tmp_path: Path) -> None:
    shown = state()
    assert shown.cycle is not None
    notifier = ChangeNotifier()
    notifier.publish(shown.cycle.waits, shown.cycle.snapshot)
    cluster = SimpleNamespace(read_state=lambda: shown.observed, lock=threading.RLock())
    store = SimpleNamespace(recorded_usage=lambda period: RecordedUsage())
    unused = cast(Any, None)
    daemon = DaemonService(unused, cast(Any, store), cast(Any, cluster), unused, notifier)
    rights = [("alice", LIST, ""), ("alice", "queues", ""), ("alice", "nodes", "")]

    async def run() -> None:
        async with serving(tmp_path, state, *rights, max_open=3, max_open_per_user=2) as api:
            for route in (
                "queues",
                "nodes",
                "jobs?limit=2",
                "pendingjobs",
                "preemptions",
                "usage",
                "namespaces/mine/jobs/c",
            ):
                remote = (await api.get(f"{BASE_PATH}/{route}")).body
                local = daemon.read(f"{BASE_PATH}/{route}").model_dump(mode="json", by_alias=True, exclude_none=True)
                remote.pop("source", None)
                local.pop("source", None)
                assert remote == local

    asyncio.run(run())


def test_an_api_server_without_an_aggregation_layer_is_named() -> None:
    with pytest.raises(ClusterError, match="--requestheader-client-ca-file"):
        RequestHeaderConfig.from_config_map({"client-ca-file": "x"})
    with pytest.raises(ClusterError, match=r"requestheader-username-headers .* must be a JSON list"):
        RequestHeaderConfig.from_config_map(
            {"requestheader-client-ca-file": "x", "requestheader-username-headers": "X-Remote-User"}
        )
