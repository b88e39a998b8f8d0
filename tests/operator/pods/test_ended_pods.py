"""Pods of an ended attempt are removed, in whichever order their end and our delete happen."""

from __future__ import annotations

import pytest
from tests.operator.api_server import OperatorHarness, Server, admitted, serve
from tests.operator.objects import pod_seen

from muster.kube.async_client import AsyncKubeClient

OWNER = "uid-llama"
ENDED_AT = "2026-11-21T10:00:07Z"


async def going_on(harness: OperatorHarness) -> None:
    """Several cycles with pauses in between."""
    for _ in range(6):
        now = harness.cache._clock() + 30.0
        harness.cache._clock = lambda now=now: now  # type: ignore[misc]
        await harness.run_cycle()


def waits(harness: OperatorHarness, version: int) -> None:
    """A job in attempt 1, with a failed pod of attempt 0."""
    harness.submit("llama", 7, {**admitted(), "attempt": 1})
    harness.cache.pods.on_upsert(pod_seen("", version, owner=OWNER, phase="Failed"))


def test_a_pod_deleted_by_another_client_blocks_no_attempt() -> None:
    server = Server(refuses=[("DELETE", "pods/llama-trainer-0", 404)])

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        waits(harness, 8)
        await harness.run_cycle()
        harness.cache.pods.on_delete(pod_seen("", 9, owner=OWNER, phase="Failed"))
        await going_on(harness)
        assert {view.attempt for view in harness.cache.observe().pods[OWNER]} == {1}

    serve(server, scenario)


@pytest.mark.parametrize("round_between", [False, True])
def test_an_event_older_than_our_delete_does_not_restore_the_pod(round_between: bool) -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        waits(harness, 8)
        await harness.run_cycle()
        unready = [{"type": "Ready", "status": "False"}]
        harness.cache.pods.on_upsert(pod_seen("", 9, owner=OWNER, phase="Failed", conditions=unready))
        if round_between:
            await harness.run_cycle()
        last = pod_seen("", server.version + 5, owner=OWNER, phase="Failed")
        last.metadata.deletion_timestamp = ENDED_AT
        harness.cache.pods.on_upsert(last)
        harness.cache.pods.on_delete(last)
        await going_on(harness)
        assert {view.attempt for view in harness.cache.observe().pods[OWNER]} == {1}
        assert server.count("DELETE") == 1

    serve(server, scenario)
