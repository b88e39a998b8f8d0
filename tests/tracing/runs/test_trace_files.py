"""Collectors of several pods in one run folder."""

from __future__ import annotations

import gzip
import hashlib
import random
import subprocess
import time
from pathlib import Path

import pytest
from tests.tracing.kineto import trace_text, training_steps
from tests.tracing.spool import (
    TRACE,
    abandoned,
    collected,
    collector,
    command,
    listed,
    manifest_of,
    run_once,
    spooled,
    uncollected,
)

from muster.tracing.collect.spool_collector import collect_abandoned
from muster.tracing.runs.trace_files import collector_lock
from muster.tracing.shared_folder import SharedFolder

pytestmark = pytest.mark.usefixtures("undisturbed")


@pytest.mark.slow
def test_two_collectors_collect_each_trace_once(tmp_path: Path) -> None:
    for rank in range(20):
        spooled(tmp_path, rank)
    with collector(tmp_path, "--until-idle", pod=0) as first, collector(tmp_path, "--until-idle", pod=1) as second:
        assert (first.wait(), second.wait()) == (0, 0)
    both = [entry.rank for entry in listed(tmp_path)]
    assert sorted(both) == list(range(20))
    assert uncollected(tmp_path) == []


def test_claims_of_a_terminated_collector_of_another_pod_are_taken_over(tmp_path: Path) -> None:
    abandoned(tmp_path, 3, pod=7)
    abandoned(tmp_path, 9, pod=7)
    assert run_once(tmp_path, "--ranks", "0-3") == 0
    assert [entry.rank for entry in manifest_of(tmp_path).traces] == [3]
    assert uncollected(tmp_path) == ["rank-9.attempt-0.steps-20-25.json"]


def test_claims_of_a_running_collector_of_another_pod_are_not_taken_over(tmp_path: Path) -> None:
    source = abandoned(tmp_path, pod=7)
    with collector_lock(SharedFolder(tmp_path), "trainer-7") as locked:
        assert locked is True
        assert run_once(tmp_path) == 0
    assert source.read_bytes() == TRACE


def test_a_trace_recorded_by_a_terminated_collector_is_not_listed_again(tmp_path: Path) -> None:
    spooled(tmp_path)
    run_once(tmp_path, pod=7)
    abandoned(tmp_path, pod=7)  # as if it had been killed just before deleting the original
    assert run_once(tmp_path) == 0
    assert len(listed(tmp_path)) == 1
    assert uncollected(tmp_path) == []


def test_a_trace_written_again_waits_while_another_pod_has_claimed_the_earlier_one(tmp_path: Path) -> None:
    abandoned(tmp_path, pod=7)
    newer = spooled(tmp_path, content=trace_text(training_steps(2)))
    with collector_lock(SharedFolder(tmp_path), "trainer-7"):
        run_once(tmp_path)
    assert newer.exists()
    assert run_once(tmp_path) == 0
    assert gzip.decompress(collected(tmp_path).read_bytes()) == trace_text(training_steps(2))
    assert len(listed(tmp_path)) == 1


def test_abandoned_traces_are_collected_for_their_owners(tmp_path: Path) -> None:
    abandoned(tmp_path, 0, pod=0)
    abandoned(tmp_path, 1, pod=1)
    alive = abandoned(tmp_path, 2, pod=2)
    with collector_lock(SharedFolder(tmp_path), "trainer-2"):
        assert collect_abandoned(tmp_path, now=1.0) == 2
    assert sorted(entry.rank for entry in listed(tmp_path)) == [0, 1]
    assert alive.exists()


@pytest.mark.slow
def test_random_kills_of_several_collectors_lose_and_duplicate_no_trace(tmp_path: Path) -> None:
    """Three pods share a run folder; each is killed at random times and may restart."""
    chance = random.Random(1)
    contents = {rank: trace_text(training_steps(1500 + rank), rank=rank) for rank in range(12)}
    pending = dict(contents)
    running: dict[int, subprocess.Popen[bytes]] = {}
    kills = 0
    try:
        while pending or kills < 24:
            if pending:
                rank, content = pending.popitem()
                spooled(tmp_path, rank, content=content)
            pod = chance.randrange(3)
            if pod in running:
                running.pop(pod).kill()
                kills += 1
            running[pod] = subprocess.Popen(command(tmp_path, pod=pod), stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.05, 0.3))
        for process in running.values():
            process.kill()
        last = [subprocess.Popen(command(tmp_path, "--until-idle", pod=pod), stderr=subprocess.PIPE) for pod in (0, 1)]
        assert [(process.wait()) for process in last] == [0, 0]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    collect_abandoned(tmp_path, time.time())  # as at report time: one of the two may have ended before the other
    assert sorted(entry.rank for entry in listed(tmp_path)) == list(range(12))
    for rank, content in contents.items():
        assert gzip.decompress(collected(tmp_path, rank).read_bytes()) == content
    for entry in listed(tmp_path):
        assert entry.sha256 == hashlib.sha256((tmp_path / "traces" / entry.file).read_bytes()).hexdigest()
    assert uncollected(tmp_path) == []
    assert list((tmp_path / "traces").glob(".*.tmp")) == []
