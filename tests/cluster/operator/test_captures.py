"""Traces on demand on Kubernetes: TraceCapture, operator, collectors of two pods, and ranks without torch."""

from __future__ import annotations

import re
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.cluster.controlplane.api import Refused
from tests.cluster.operator.captures import create, path_of, running, status, wait_until_finished
from tests.cluster.operator.pools import GROUP, Pool
from tests.cluster.operator.sidecars import heartbeat

from muster.api.spec import TraceCaptureSpec
from muster.cluster_client.client import KubernetesClusterClient
from muster.kube.config import KubeContext


@pytest.mark.smoke
def test_ranks_of_two_pods_record_the_same_steps_as_often_as_wanted(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    with running(pool, "llama", tmp_path) as ranks:
        client = KubernetesClusterClient.connect(KubeContext(str(pool.plane.kubeconfig())))
        for number in (1, 2):
            spec = TraceCaptureSpec(job="llama", steps=3)
            seen = deque(client.capture(spec, pool.namespace), maxlen=1).pop().status
            assert (seen.phase, [entry.state for entry in seen.ranks]) == ("Succeeded", ["collected"] * 2), seen
            assert seen.start_step is not None
            wanted = (seen.start_step, seen.start_step + 3)
            assert [rank.recorded for rank in ranks] == [[*ranks[0].recorded[: number - 1], wanted]] * 2
            for index, entry in enumerate(seen.ranks):
                assert (tmp_path / "llama" / str(index) / "traces" / entry.file).is_file()
        create(pool, "one", job="llama", steps=1, ranks="1")
        ended = wait_until_finished(pool, "one")
        assert ([entry["rank"] for entry in ended["ranks"]], ended["phase"]) == ([1], "Succeeded")
        assert [one["type"] for one in ended["conditions"]] == ["Agreed", "Complete"]
    with pytest.raises(Refused, match="must not be changed"):
        pool.api.patch(path_of(pool, "one"), {"spec": {"steps": 7}})


def test_a_rank_that_hangs_is_named_and_the_next_capture_of_the_job_waits_for_this_one(
    pool: Pool, tmp_path: Path
) -> None:
    pool.set_up()
    with running(pool, "llama", tmp_path) as ranks:
        pool.wait("steps are made", lambda: all((rank.context.heartbeat_path).exists() for rank in ranks))
        ranks[1].hangs = True
        create(pool, "a-first", job="llama")
        pool.wait("it is proposed", lambda: bool(status(pool, "a-first").get("proposal")))
        create(pool, "b-second", job="llama", ranks="0")
        ended = wait_until_finished(pool, "a-first")
        assert (ended["phase"], ended["reason"]) == ("Failed", "NotAcknowledged")
        assert "rank 1: no answer; its newest heartbeat is of step" in ended["message"]
        second = wait_until_finished(pool, "b-second")
        assert second["phase"] == "Succeeded", second
        assert second["requestedAt"] >= ended["finishedAt"]
        assert (second["startStep"], second["endStep"]) == ranks[0].recorded[-1]
        assert ranks[1].recorded == []


def test_stacks_of_the_ranks_say_which_one_hangs_and_in_which_pod(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    with running(pool, "llama", tmp_path) as ranks:
        pool.wait("steps are made", lambda: all(rank.context.heartbeat_path.exists() for rank in ranks))
        ranks[1].hangs = True
        client = KubernetesClusterClient.connect(KubeContext(str(pool.plane.kubeconfig())))
        found = client.stacks("llama", pool.namespace)
        frames = [(0, ("wait (/train.py:7)",)), (1, ("sleep (/data.py:3)",))]
        assert [(one.rank, one.frames) for one in found.ranks] == frames
        (capture,) = pool.api.items(path_of(pool))
        assert capture["spec"]["kind"] == "Stacks"
        assert found.message == capture["status"]["message"]
        blamed = (
            r"rank 1 in pod llama-worker-1-\S+ on node \S+ never entered all-gather 8 of group fsdp; rank 0 waits in it"
        )
        assert re.match(blamed, found.message), found.message


def test_where_the_ranks_are_of_a_job_that_makes_no_step_for_long_is_an_event(pool: Pool, tmp_path: Path) -> None:
    pool.set_up()
    with running(pool, "llama", tmp_path) as ranks:
        pool.wait("a step is known", lambda: bool(pool.status("llama").get("progress")))
        for rank in ranks:
            rank.hangs = True
        hour_ago = time.time() - 3600
        earlier = datetime.fromtimestamp(hour_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        path = f"{GROUP}/namespaces/{pool.namespace}/trainingjobs/llama/status"
        pool.api.patch(path, {"status": {"startedAt": earlier}})

        def is_reported() -> bool:
            heartbeat(tmp_path / "llama" / "0", 10_000, world_size=2, step_time_s=0.02, at=hour_ago)
            return "RanksStalled" in pool.events("llama")

        pool.wait("an Event says where the ranks are", is_reported)
        (note,) = (one["note"] for one in pool.api.items(f"/apis/events.k8s.io/v1/namespaces/{pool.namespace}/events")
                   if one["reason"] == "RanksStalled")  # fmt: skip
        assert re.fullmatch(r"no step for \d+ min after step 10000; ranks 0, 1 are all in sleep \(/data.py:3\)", note)


def test_captures_that_cannot_be_carried_out_say_why(pool: Pool) -> None:
    pool.set_up()
    pool.submit("plain", pods=1)
    pool.wait_for_phase("plain", "Running")
    create(pool, "uncollected", job="plain")
    create(pool, "unknown", job="absent")
    ended = wait_until_finished(pool, "uncollected")
    assert (ended["phase"], ended["reason"]) == ("Failed", "NoCollector")
    assert "collector.allJobs" in ended["message"]
    assert wait_until_finished(pool, "unknown")["message"] == "job absent does not exist"
    for wrong in ({"ranks": "first"}, {"steps": 0}, {"options": ["stack"]}):
        with pytest.raises(Refused):
            create(pool, "wrong", job="plain", **wrong)


def test_finished_captures_are_deleted_after_their_ttl(pool: Pool) -> None:
    pool.set_up()
    create(pool, "brief", job="absent", ttlSecondsAfterFinished=1)
    pool.wait("it is gone", lambda: pool.api.gone(path_of(pool, "brief")))
