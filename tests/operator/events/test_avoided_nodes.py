"""Rejected pods in the log, and nodes that all jobs avoid in metrics, log and Events."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.operator.api_server import NOW, OperatorHarness, Server, admitted, serve
from tests.operator.objects import pod_seen

from muster.kube.async_client import AsyncKubeClient

AT = "2026-11-21T10:00:05Z"
REJECTED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no healthy devices"}


def rejected_on_n1(name: str) -> dict[str, Any]:
    """Status of a waiting job whose pod n1 has rejected."""
    blame = {"node": "n1", "at": AT, "until": "2026-11-21T11:00:05Z", "reason": "PodRejected"}
    failure = {"pod": f"{name}-0", "node": "n1", "reason": REJECTED["reason"], "logTail": REJECTED["message"], "at": AT}
    return {
        "observedGeneration": 1,
        "phase": "Pending",
        "submittedAt": NOW,
        "rejections": 1,
        "blamedNodes": [blame],
        "lastFailure": failure,
    }


def test_one_log_line_names_job_node_and_reason_of_a_rejected_pod(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("a", 5, admitted())
        for index in range(2):
            harness.cache.pods.on_upsert(pod_seen("", 6 + index, owner="uid-a", slot=(index, 0), **REJECTED))
        for _ in range(2):
            await harness.run_cycle()
        (line,) = [vars(one) for one in caplog.records if one.message == "job evicted"]
        assert (line["job"], line["node"], line["reason"]) == ("team/a", "n1", "PodRejected")
        assert f"{REJECTED['reason']}: {REJECTED['message']}" in line["why"]
        assert ("a", "PodRejected") in harness.pending_events()

    with caplog.at_level(logging.INFO):
        serve(Server(), scenario)


def test_an_avoided_node_has_a_gauge_a_log_line_and_an_event_with_the_kubelets_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("a", 5, rejected_on_n1("a"))
        await harness.run_cycle()
        assert harness.metrics.avoided_nodes._value.get() == 0
        harness.submit("b", 6, rejected_on_n1("b"))
        for _ in range(2):
            await harness.run_cycle()
        assert harness.metrics.avoided_nodes._value.get() == 1
        (event,) = [one.manifest for one in harness.recorder.pending() if one.manifest["reason"] == "NodeAvoided"]
        assert (event["regarding"]["kind"], event["regarding"]["name"], event["type"]) == ("Node", "n1", "Warning")
        why = "(UnexpectedAdmissionError: Pod was rejected: no healthy devices)"
        assert event["note"] == (
            "no gang is placed on this node until 2026-11-21T11:00:05Z, "
            f"after failures of team/a {why} and team/b {why}"
        )
        (line,) = [vars(one) for one in caplog.records if one.message == "node is avoided"]
        assert line["node"] == "n1"
        harness.leader._avoided_nodes.reset()
        assert harness.metrics.avoided_nodes._value.get() == 0

    with caplog.at_level(logging.INFO):
        serve(Server(), scenario)
