"""PodGroups: created in the newest version that is served, and gangs start without them where none is."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from tests.operator.api_server import OperatorHarness, Server, admitted, serve
from tests.operator.objects import pod_seen

from muster.cluster import RecordEvent
from muster.kube.async_client import ApiError, AsyncKubeClient
from muster.kube.objects import V1PodSchedulingGroup
from muster_operator.cache.cached_job import CachedJob
from muster_operator.runners.create_pods.pod_groups import PodGroups

GROUP = "/apis/scheduling.k8s.io"


class GangServer(Server):
    """Serves PodGroups in these versions only."""

    def __init__(self, *versions: str) -> None:
        super().__init__()
        self.versions = versions

    async def answer(self, request: web.Request) -> web.StreamResponse:
        _, _, rest = request.path.partition(f"{GROUP}/")
        version, _, collection = rest.partition("/")
        if rest and version not in self.versions:
            self.calls.append(f"{request.method} {request.path}")
            return web.json_response({"code": 404, "reason": "NotFound", "message": "not found"}, status=404)
        if rest and not collection:
            self.calls.append(f"{request.method} {request.path}")
            return web.json_response({"resources": [{"name": "podgroups"}, {"name": "podgroups/status"}]})
        return await super().answer(request)

    @property
    def created(self) -> list[str]:
        return [body["apiVersion"] for body in self.bodies if body.get("kind") == "PodGroup"]

    @property
    def discoveries(self) -> int:
        return sum(call.startswith(f"GET {GROUP}/") for call in self.calls)


class PodGroupsHarness:
    """PodGroups with what they have reported."""

    def __init__(self, api: AsyncKubeClient) -> None:
        self.harness = OperatorHarness(api)
        self.events: list[RecordEvent] = []
        self.missing, self.now = 0, 0.0
        self.api = api
        self.restart()

    def restart(self) -> None:
        """As an operator that starts has it."""
        pods = self.harness.cache.pods
        self.groups = PodGroups(self.api, pods, self.events.append, self._count, lambda: self.now)

    def _count(self) -> None:
        self.missing += 1

    def gang(self, name: str, attempt: int = 0) -> CachedJob:
        self.harness.submit(name, 5 + attempt, {**admitted(), "attempt": attempt})
        known = self.harness.cache.jobs.get(f"uid-{name}")
        assert known is not None
        return known

    async def start(self, name: str, attempt: int = 0) -> str:
        """The PodGroup that a pod of a gang names; "" if none."""
        known, pod = self.gang(name, attempt), dict[str, Any](spec={})
        await self.groups.ensure(known)
        self.groups.set_group(pod, known.uid, attempt)
        return str(pod["spec"].get("schedulingGroup", {}).get("podGroupName", ""))


@pytest.mark.parametrize(
    ("served", "used"),
    [(("v1beta1", "v1alpha2"), "v1beta1"), (("v1alpha2",), "v1alpha2"), (("v1", "v1beta1"), "v1beta1")],
)
def test_the_newest_version_that_is_served_and_known_is_used(served: tuple[str, ...], used: str) -> None:
    server = GangServer(*served)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        assert await harness.start("one")
        assert await harness.start("two")
        assert server.created == [f"scheduling.k8s.io/{used}"] * 2
        assert server.discoveries <= 2  # once for both

    serve(server, scenario)


def test_where_no_version_is_served_gangs_start_without_and_each_is_reported() -> None:
    server = GangServer("v1")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        assert await harness.start("one") == ""
        assert await harness.start("two") == ""
        assert (server.created, harness.missing) == ([], 2)
        assert {(event.type, event.reason) for event in harness.events} == {("Warning", "PodGroupNotServed")}
        assert server.discoveries == 2  # v1beta1, v1alpha2
        server.versions = ("v1beta1",)
        harness.now = 59.0
        assert await harness.start("three") == ""
        harness.now = 61.0
        assert await harness.start("four")

    serve(server, scenario)


def test_a_version_that_ends_with_an_upgrade_is_replaced_at_the_next_gang() -> None:
    server = GangServer("v1alpha2")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        assert await harness.start("one")
        server.versions = ("v1beta1",)
        assert await harness.start("two")
        assert await harness.start("one", attempt=1)
        assert server.created == [f"scheduling.k8s.io/{version}" for version in ("v1alpha2", "v1beta1", "v1beta1")]
        server.versions = ()
        assert await harness.start("three") == ""
        assert harness.missing == 1

    serve(server, scenario)


@pytest.mark.parametrize(("before", "group"), [((), False), (("v1beta1",), True)])
def test_after_a_restart_pods_of_an_attempt_name_the_same_group_as_those_that_exist(
    before: tuple[str, ...], *, group: bool
) -> None:
    """The API may be served since. A group of which some pods are no members would never reach its minCount."""
    server = GangServer(*before)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        name = await harness.start("one")
        assert bool(name) is group
        pod = pod_seen(owner="uid-one", version=9)
        pod.spec.scheduling_group = V1PodSchedulingGroup(name) if name else None
        harness.harness.cache.pods.on_upsert(pod)
        server.versions = ("v1beta1",)
        harness.restart()
        assert await harness.start("one") == name
        assert server.created == ["scheduling.k8s.io/v1beta1"] * (2 if group else 0)
        assert harness.missing == (0 if group else 1)
        assert await harness.start("one", attempt=1)

    serve(server, scenario)


def test_a_404_for_another_cause_is_the_answer() -> None:
    server = GangServer("v1beta1")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        server.refuses = [("POST", "podgroups", 404)]
        with pytest.raises(ApiError):
            await harness.start("one")
        assert (harness.missing, harness.events) == (0, [])

    serve(server, scenario)


def test_a_refused_deletion_of_the_previous_group_stops_no_gang() -> None:
    server = GangServer("v1beta1")

    async def scenario(api: AsyncKubeClient) -> None:
        harness = PodGroupsHarness(api)
        server.refuses = [("DELETE", "podgroups", 500)]
        assert await harness.start("one", attempt=1)

    serve(server, scenario)
