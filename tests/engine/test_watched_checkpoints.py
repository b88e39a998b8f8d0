"""Preemption and usage by the checkpoints that the launcher found, of programs that report nothing else."""

from __future__ import annotations

import pytest
from tests.engine.objects import flavor, job, nodes, queue, settle
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.engine import Engine
from muster.heartbeats.parse import ClockReading, parse_heartbeat
from muster.simulate import JobBehavior


class WatchedCluster(ScenarioCluster):
    """Of each job only its last checkpoint is known."""

    def _update_heartbeats(self) -> None:
        super()._update_heartbeats()
        for uid, seen in self._heartbeats.items():
            found = {"format": "DeepSpeed", "step": seen.checkpoint_step, "at": seen.checkpoint_at}
            watched = parse_heartbeat({}, found, ClockReading(self.now), seen)
            assert watched is not None
            self._heartbeats[uid] = watched


@pytest.mark.parametrize(("checkpoint_every_s", "evicted", "lost_s"), [(100.0, "older", 10.0), (None, "newer", 210.0)])
def test_a_job_with_a_watched_checkpoint_is_evicted_before_one_that_loses_more(
    checkpoint_every_s: float | None, evicted: str, lost_s: float
) -> None:
    cluster, engine = WatchedCluster(nodes(2), [flavor()], [queue()]), Engine()
    limits = {"stallTimeoutSeconds": 20, "firstStepTimeoutSeconds": 150 if checkpoint_every_s else 1000}
    behavior = JobBehavior(2000, stop_s=5, checkpoint_every_s=checkpoint_every_s)
    uids = {"older": cluster.submit(job("older", 1, **limits), behavior)}
    settle(engine, cluster, until=300)
    uids["newer"] = cluster.submit(job("newer", 1), JobBehavior(2000, stop_s=5))
    settle(engine, cluster, until=510)
    assert {cluster.job(uid).status.phase for uid in uids.values()} == {"Running"}
    assert cluster.job(uids["older"]).status.restarts == 0, "no time-out of steps ends it between checkpoints"
    urgent = cluster.submit(job("urgent", 1, priority=5), JobBehavior(100))
    settle(engine, cluster, until=530)
    status = cluster.job(uids[evicted]).status
    assert (status.phase, cluster.job(urgent).status.phase) == ("Pending", "Running")
    known_since = 300 if status.last_checkpoint is None else status.last_checkpoint.at
    assert 510 - known_since == lost_s
    settle(engine, cluster, until=3000)
    ended = cluster.job(uids[evicted]).status
    assert (ended.phase, ended.restarts) == ("Succeeded", 0)
    charged_s = sum((segment.until or 0.0) - segment.since for segment in ended.usage.ended) if ended.usage else 0.0
    assert charged_s == 2000 + lost_s + 5, "its work, what it lost, and the time in which it stopped"
