"""A user who edits a job more often than usage is recorded cannot remove what the job was charged for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.checked_cluster import submit
from tests.engine.objects import flavor, job, nodes, queue
from tests.usage.histories import ChargedCluster, gpu_cells

from muster.engine import Engine, run_cycle
from muster.simulate import JobBehavior
from muster.usage.segments import MAX_ENDED, segments_of
from muster.usage.totals import UsageTotals

DAY_S = 86_400.0
USER = "muster.dev/user"


class LongJob:
    """Two GPUs for a day, in one segment."""

    def __init__(self) -> None:
        self.cluster = ChargedCluster(nodes(2, gpus=4), [flavor()], [queue("all", 8)])
        self._engine = Engine()
        submit(self.cluster, job("long", pods=2, gpus=1, queue="all"), JobBehavior(1e7))
        (self.uid,) = self.cluster.job_uids()
        self.cycles(10)
        self.cluster.advance(DAY_S)
        self.cycles(3)

    def cycles(self, count: int) -> None:
        for _ in range(count):
            self.cluster.advance(self.cluster.now + 0.05)
            run_cycle(self.cluster, self._engine)

    def change_user(self, number: int) -> None:
        self.cluster.set_labels(self.uid, {USER: f"user{number}"})
        self.cluster.edit(self.uid, priority=number)  # so that the status is written
        self.cycles(3)

    def suspend(self, number: int) -> None:
        self.cluster.edit(self.uid, suspend=True)
        self.cycles(3)
        self.cluster.edit(self.uid, suspend=False)
        self.cycles(3)

    def gpu_seconds(self) -> float:
        """What the job's status says."""
        found = segments_of(self.cluster.job(self.uid), self.cluster.now)
        assert found is not None
        assert len(found.ended) <= MAX_ENDED
        sums = UsageTotals()
        sums.add_all(found.ended)
        if found.current is not None:
            sums.add(found.current)
        return sum(gpu_cells([sums]).values()) / 1000

    def charged(self) -> float:
        return sum(self.cluster.charged().values()) / 1000


@pytest.mark.parametrize("change", [LongJob.change_user, LongJob.suspend])
def test_what_a_job_was_charged_for_remains_however_often_it_is_edited_before_the_next_write_of_the_record(
    change: Callable[[LongJob, int], None],
) -> None:
    one = LongJob()
    before = one.gpu_seconds()
    assert before == pytest.approx(one.charged())
    for number in range(MAX_ENDED + 10):
        change(one, number)
    assert one.gpu_seconds() >= before


def test_a_job_whose_label_is_changed_all_the_time_is_charged_for_all_of_its_time() -> None:
    one = LongJob()
    for number in range(2 * MAX_ENDED):
        one.change_user(number)
    assert one.gpu_seconds() == pytest.approx(one.charged())


def test_segments_begin_again_once_the_record_has_the_earlier_ones() -> None:
    one = LongJob()
    for number in range(MAX_ENDED + 10):
        one.change_user(number)
    one.cluster.recorded_usage = {one.uid: MAX_ENDED}
    one.change_user(1000)
    usage = one.cluster.job(one.uid).status.usage
    assert usage is not None
    assert usage.current is not None
    assert (usage.first, len(usage.ended), usage.current.user) == (MAX_ENDED, 1, "user1000")
