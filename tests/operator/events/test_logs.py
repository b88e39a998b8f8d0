"""The log of scheduling cycles."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from tests.operator.api_server import OperatorHarness, Server, serve
from tests.operator.caches import new_cache

from muster.engine import CycleResult
from muster.kube.async_client import AsyncKubeClient
from muster.model import Decision, Nominate, Snapshot, Wait
from muster_operator.logs import CYCLE, CycleDurations, JsonFormatter, log_cycle

LOGGER = "muster.operator.cycle"


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in vars(logging.makeLogRecord({}))}


def log_decisions(decisions: tuple[Decision, ...], waits: dict[str, Wait]) -> None:
    cycle = CycleResult((), (), decisions, waits, None, Snapshot(0.0, (), (), (), (), ()))
    log_cycle(cycle, CycleDurations(0, 0, 0, 0), new_cache()[0], 0)


def logged_decision(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (decision,) = (record for record in caplog.records if record.message == "decision")
    return {name: value for name, value in fields(decision).items() if name not in ("message", "asctime")}


def test_a_cycle_has_one_log_line_with_durations_gangs_and_writes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("llama", 5)
        await harness.run_cycle()
        await harness.run_cycle()

    serve(Server(), scenario)
    lines = [fields(record) for record in caplog.records if record.name == LOGGER]
    assert (
        lines[0].items()
        >= {
            "gangs_considered": 1,
            "gangs_admitted": 1,
            "gangs_preempted": 0,
            "gangs_waiting": 0,
            "jobs_unwritten": 0,
        }.items()
    )
    assert lines[0]["status_writes"] >= 1
    durations = [lines[0][name] for name in ("observe_s", "reconcile_s", "plan_s", "write_s")]
    assert all(one >= 0.0 for one in durations)
    assert durations[-1] > 0.0


def test_at_level_debug_each_decision_has_job_code_and_placement(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("llama", 5)
        await harness.run_cycle()

    serve(Server(), scenario)
    decisions = [fields(record) for record in caplog.records if record.message == "decision"]
    assert [(one["job"], one["decision"]) for one in decisions] == [("team/llama", "Admit")]
    assert decisions[0]["placement"].startswith("trainer@f: n")


def test_at_level_debug_a_waiting_gang_has_its_message_position_and_estimated_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    wait = Wait("uid", "QuotaExceeded", "needs 8 nvidia.com/gpu; 4 left", position=2, estimated_start=60.0)
    log_decisions((), {"uid": wait})
    assert logged_decision(caplog) == {
        "job": "uid",
        "decision": "Wait",
        "reason": "QuotaExceeded",
        "why": "needs 8 nvidia.com/gpu; 4 left",
        "position": 2,
        "estimated_start": "1970-01-01T00:01:00Z",
    }


def test_at_level_debug_a_nomination_names_the_gangs_preempted_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    log_decisions((Nominate("uid", (), ("a", "b"), 60.0),), {})
    assert logged_decision(caplog) == {
        "job": "uid",
        "decision": "Nominate",
        "placement": "",
        "preempted": ["a", "b"],
        "expires_at": "1970-01-01T00:01:00Z",
    }


def test_a_cycle_without_decisions_and_writes_is_logged_at_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOGGER)
    wait = Wait("uid", "QuotaExceeded", "no quota")
    log_decisions((), {"uid": wait})
    line, decision = caplog.records
    assert (line.levelname, fields(line)["gangs_waiting"]) == ("DEBUG", 1)
    assert fields(decision).items() >= {"job": "uid", "decision": "Wait", "reason": "QuotaExceeded"}.items()


def test_every_log_line_of_a_cycle_has_its_number() -> None:
    record = logging.makeLogRecord({"msg": "pod refused", "levelname": "WARNING"})
    token = CYCLE.set("k3f9a-7")
    try:
        assert json.loads(JsonFormatter().format(record))["cycle"] == "k3f9a-7"
    finally:
        CYCLE.reset(token)
    assert "cycle" not in json.loads(JsonFormatter().format(record))


def test_the_id_of_a_cycle_is_in_the_statuses_and_events_that_it_writes() -> None:
    server = Server()

    async def scenario(api: AsyncKubeClient) -> None:
        harness = OperatorHarness(api)
        harness.submit("llama", 5)
        await harness.run_cycle()
        cycle = f"{harness.term.id}-1"
        known = harness.cache.jobs.get("uid-llama")
        assert known is not None
        assert known.job.status.last_cycle == cycle
        written = [body["status"]["lastCycle"] for body in server.bodies if "phase" in body.get("status", {})]
        assert written == [cycle]
        (event,) = harness.recorder.pending()
        assert event.manifest["metadata"]["annotations"] == {"muster.dev/cycle": cycle}

    serve(server, scenario)
