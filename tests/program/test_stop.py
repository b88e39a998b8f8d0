"""The agreement of ranks to stop after the same call, with threads as ranks and a barrier as their collective."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.program.stop import StopAgreement, stop_seconds

LONG_S = 600.0


class MemoryStore:
    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def set(self, key: str, value: str, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return self._values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._values for key in keys)


class Ranks:
    """Each trains until it is to stop: `should_stop`, then a collective of all."""

    def __init__(self, count: int, signalled: dict[int, int], *, together: bool = True) -> None:
        """`signalled`: ranks, and after which of their calls SIGTERM comes."""
        self.agreements = [StopAgreement(rank, count, LONG_S) for rank in range(count)]
        self.last_calls: dict[int, int] = {}
        self.deadlines: dict[int, float] = {}
        self._signalled = signalled
        self._collective = threading.Barrier(count) if together else None
        store = MemoryStore()
        self._threads = [threading.Thread(target=one.run, args=(store,), daemon=True) for one in self.agreements]
        self._threads += [threading.Thread(target=self._train, args=(rank,), daemon=True) for rank in range(count)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(LONG_S)
            assert not thread.is_alive()

    def _train(self, rank: int) -> None:
        for call in range(1, 10**9):
            deadline = self.agreements[rank].should_stop()
            if deadline is not None:
                self.last_calls[rank], self.deadlines[rank] = call, deadline
                return
            if self._collective is not None:
                self._collective.wait(LONG_S)
            if call == self._signalled.get(rank):
                self.agreements[rank].on_signal()
            time.sleep(0.0001 * (rank + 1))


@settings(max_examples=10, deadline=None)
@given(
    count=st.integers(2, 5),
    signalled=st.dictionaries(st.integers(0, 4), st.integers(1, 300), min_size=1),
    together=st.booleans(),
)
def test_all_ranks_stop_in_the_same_call(count: int, signalled: dict[int, int], together: bool) -> None:
    signalled = {rank % count: call for rank, call in signalled.items()}
    ranks = Ranks(count, signalled, together=together)
    ranks.run()
    assert len(set(ranks.last_calls.values())) == 1
    assert sorted(ranks.last_calls) == list(range(count))
    assert ranks.last_calls[0] > min(signalled.values())


def test_the_deadline_of_a_rank_that_got_no_signal_is_that_of_another_one() -> None:
    ranks = Ranks(2, {1: 1})
    before = time.time()
    ranks.run()
    assert ranks.deadlines[0] == ranks.deadlines[1]
    assert before + LONG_S <= ranks.deadlines[0] <= time.time() + LONG_S


def test_a_rank_that_waits_for_a_decision_goes_on_once_the_agreement_has_failed() -> None:
    agreement = StopAgreement(1, 2, LONG_S)
    store = MemoryStore()
    thread = threading.Thread(target=agreement.run, args=(store,), daemon=True)
    agreement.on_signal()
    store.set("muster/stop/0/proposal", "3")  # and rank 0 ends
    thread.start()
    while agreement._last_call is None:
        time.sleep(0.01)
    waiting = threading.Thread(target=lambda: [agreement.should_stop() for _ in range(3)], daemon=True)
    waiting.start()
    agreement.close()
    for one in (waiting, thread):
        one.join(LONG_S)
        assert not one.is_alive()


def test_a_single_rank_stops_in_its_next_call() -> None:
    agreement = StopAgreement(0, 1, LONG_S)
    assert agreement.should_stop() is None
    agreement.on_signal()
    assert agreement.should_stop() is not None


@pytest.mark.parametrize(("grace_s", "stop_s"), [("", 17), ("60", 47), ("8", 3), ("600", 587)])
def test_the_deadline_is_what_the_launcher_leaves_of_the_grace_period(grace_s: str, stop_s: float) -> None:
    assert stop_seconds({"MUSTER_GRACE_SECONDS": grace_s}) == stop_s
