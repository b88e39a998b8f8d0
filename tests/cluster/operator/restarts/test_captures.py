"""A capture survives the operator that began it: another one repeats its proposal instead of making a new one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.operator.captures import create, running, status, wait_until_finished
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import QUICK
from tests.cluster.operator.restarts.conftest import Start
from tests.cluster.operator.sidecars import COLLECTORS


@pytest.mark.parametrize("phase", ["Pending", "Agreed"])
def test_a_capture_is_continued_by_another_operator(pool: Pool, start: Start, tmp_path: Path, phase: str) -> None:
    flags = (*COLLECTORS, *QUICK)
    operator = start("a", *flags)
    with running(pool, "llama", tmp_path) as ranks:
        pool.wait("steps are made", lambda: all(rank.context.heartbeat_path.exists() for rank in ranks))
        create(pool, "capture", job="llama", steps=5)
        if phase == "Pending":
            pool.wait("it is proposed", lambda: bool(status(pool, "capture").get("proposal")))
        else:
            pool.wait("it is agreed", lambda: "agreedAt" in status(pool, "capture"))
        operator.kill()
        before = status(pool, "capture")
        start("b", *flags)
        after = wait_until_finished(pool, "capture")
        assert ranks[0].recorded == ranks[1].recorded
        if after["proposal"] == before["proposal"]:
            assert after["startStep"] == before["startStep"]
        if phase == "Agreed":
            assert (after["phase"], len(ranks[0].recorded)) == ("Succeeded", 1), after
        if after["phase"] == "Succeeded":
            assert (after["startStep"], after["endStep"]) == ranks[0].recorded[0]
        else:  # the ranks had no proposal in time, since it takes 10 s until another operator leads
            assert after["reason"] == "NotAcknowledged", after
