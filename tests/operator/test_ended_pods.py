"""Pods of an ended attempt are removed, in whichever order their end and our delete happen."""

from __future__ import annotations

import pytest
from tests.operator.api_server import Rounds, Server, admitted, serve
from tests.operator.objects import pod_seen

from muster_operator.kube.client import ApiServerClient

OWNER = "uid-llama"
ENDED_AT = "2026-11-21T10:00:07Z"


async def going_on(rounds: Rounds) -> None:
    """Several cycles with pauses in between."""
    for _ in range(6):
        now = rounds.sight._clock() + 30.0
        rounds.sight._clock = lambda now=now: now  # type: ignore[misc]
        await rounds.round()


def waits(rounds: Rounds, version: int) -> None:
    """A job in attempt 1, with a failed pod of attempt 0."""
    rounds.submit("llama", 7, {**admitted(), "attempt": 1})
    rounds.sight.pods.on_upsert(pod_seen("", version, owner=OWNER, phase="Failed"))


def test_a_pod_deleted_by_another_client_blocks_no_attempt() -> None:
    server = Server(refuses=[("DELETE", "pods/llama-trainer-0", 404)])

    async def story(api: ApiServerClient) -> None:
        rounds = Rounds(api)
        waits(rounds, 8)
        await rounds.round()
        rounds.sight.pods.on_delete(pod_seen("", 9, owner=OWNER, phase="Failed"))
        await going_on(rounds)
        assert {view.attempt for view in rounds.sight.observe().pods[OWNER]} == {1}

    serve(server, story)


@pytest.mark.parametrize("round_between", [False, True])
def test_an_event_older_than_our_delete_does_not_restore_the_pod(round_between: bool) -> None:
    server = Server()

    async def story(api: ApiServerClient) -> None:
        rounds = Rounds(api)
        waits(rounds, 8)
        await rounds.round()
        unready = [{"type": "Ready", "status": "False"}]
        rounds.sight.pods.on_upsert(pod_seen("", 9, owner=OWNER, phase="Failed", conditions=unready))
        if round_between:
            await rounds.round()
        last = pod_seen("", server.version + 5, owner=OWNER, phase="Failed")
        last.metadata.deletion_timestamp = ENDED_AT
        rounds.sight.pods.on_upsert(last)
        rounds.sight.pods.on_delete(last)
        await going_on(rounds)
        assert {view.attempt for view in rounds.sight.observe().pods[OWNER]} == {1}
        assert server.count("DELETE") == 1

    serve(server, story)
