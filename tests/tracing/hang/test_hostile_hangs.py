"""The sentence about ranks that hang takes work that is linear in what the ranks say, whatever they say."""

from __future__ import annotations

import pytest

from muster.tracing.hang.hangs import explain_hang
from muster.tracing.read.flight_recorder import GroupProgress, Operation, RankCollectives


class Counted(str):
    """A name that counts how often names are compared, as each comparison of two groups does."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other) if isinstance(other, str) else False

    __hash__ = str.__hash__


def hostile(groups: int) -> list[RankCollectives]:
    """Half of the groups of rank 0 have calls, rank 1 is in as many others and has called nothing."""
    inside = Operation(1, "all_reduce")
    called = tuple(GroupProgress(Counted(f"a{i}"), "", "nccl", (0, 1), 1, (inside,)) for i in range(groups // 2))
    idle = tuple(GroupProgress(Counted(f"b{i}"), "", "", (0, 1)) for i in range(groups // 2))
    return [RankCollectives(0, called), RankCollectives(1, idle)]


def comparisons(ranks: list[RankCollectives]) -> int:
    Counted.comparisons = 0
    explain_hang(ranks)
    return Counted.comparisons


def test_groups_are_compared_a_number_of_times_that_grows_with_their_number_only() -> None:
    assert comparisons(hostile(4560)) <= 4 * 4560


def test_a_group_with_the_name_and_the_ranks_of_many_is_matched_with_a_few_of_them() -> None:
    inside = Operation(1, "all_reduce")
    backends = tuple(GroupProgress(Counted("g"), "", f"b{i}", (0, 1), 1, (inside,)) for i in range(1000))
    idle = [RankCollectives(rank, (GroupProgress(Counted("g"), "", "", (0, 1)),)) for rank in range(1, 1000)]
    assert comparisons([RankCollectives(0, backends), *idle]) <= 4 * 2000


@pytest.mark.parametrize("what", ["groups", "operations", "ranks", "texts"])
def test_collectives_of_another_program_are_cut_to_the_bounds_of_a_dump(what: str) -> None:
    long = "x" * 5000
    sends = tuple(Operation(i, "send 0->1", peer=i) for i in range(5000))
    group = GroupProgress("g", "", "nccl", (0, 1), 1, (Operation(1, "all_reduce"),))
    sent = {
        "groups": RankCollectives(0, (group,) * 5000),
        "operations": RankCollectives(0, (GroupProgress("g", "", "nccl", (0, 1), 1, sends),)),
        "ranks": RankCollectives(0, (GroupProgress("g", "", "nccl", tuple(range(-5000, 5000)), 1),)),
        "texts": RankCollectives(0, (GroupProgress(long, long, long, (), 1, (Operation(1, long, long),)),)),
    }[what]  # fmt: skip
    kept = sent.compact()
    assert len(kept.groups) <= 64
    for one in kept.groups:
        assert len(one.operations) <= 72
        assert len(one.ranks) <= 4096
        assert all(rank >= 0 for rank in one.ranks)
        texts = [one.name, one.description, one.backend, *(operation.name for operation in one.operations)]
        assert max(map(len, texts)) <= 80
        assert all(len(operation.shapes) <= 200 for operation in one.operations)
