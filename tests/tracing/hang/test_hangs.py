"""Which rank the others wait for, from dumps of torch's flight recorder.

Most dumps of NCCL are synthetic, in the format that torch writes; those in data/flight_recorder are of two H200. Those
of gloo in tests/launch/test_stack_dumps.py and in test_flight_recorder.py are torch's own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.flight_recorder import batch, dump, dumped_after, entry, transfer, write_dumps
from tests.tracing.hung_pipelines import hung_pipeline, launches
from tests.tracing.kineto import DATA

from muster.tracing.hang import hang_report
from muster.tracing.hang.hang_report import analyse_hang, find_dumps
from muster.tracing.hang.hangs import explain_hang
from muster.tracing.read.flight_recorder import read_dump

FSDP = {"1": ("mesh_fsdp", "[0, 1, 2, 3]")}
TWO = {"1": ("mesh_fsdp", "[0, 1]")}
PAIR = {"2": ("mesh_pp", "[1, 3]")}


def explained(folder: Path, dumps: dict[int, dict[str, Any]], places: dict[int, str] | None = None) -> list[str]:
    return explain_hang([read_dump(path) for path in write_dumps(folder, dumps)], places)


def test_the_rank_that_did_not_enter_a_collective_is_named_with_its_place(tmp_path: Path) -> None:
    inside = [entry(288685), entry(288686, state="started")]
    dumps = {rank: dump(*inside, groups=FSDP) for rank in (0, 1, 3)} | {2: dump(entry(288685), groups=FSDP)}
    assert explained(tmp_path, dumps, {2: " on node gpu-7"}) == [
        "rank 2 on node gpu-7 never entered all-gather 288686 of group fsdp; ranks 0, 1, 3 wait in it"
    ]


def test_ranks_that_have_called_later_collectives_ahead_of_their_device_wait_in_the_oldest_one(tmp_path: Path) -> None:
    ahead = [entry(9), entry(10, state="started"), *(entry(number, state="scheduled") for number in range(11, 400))]
    dumps = {0: dump(*ahead, groups=TWO), 1: dump(entry(9), groups=TWO)}
    assert explained(tmp_path, dumps) == ["rank 1 never entered all-gather 10 of group fsdp; rank 0 waits in it"]


def test_a_rank_whose_device_has_not_started_the_collective_is_named(tmp_path: Path) -> None:
    dumps = {
        0: dump(entry(10, state="started"), groups=TWO),
        1: dump(entry(10, state="scheduled"), groups=TWO),
    }
    assert explained(tmp_path, dumps) == [
        "rank 1 entered all-gather 10 of group fsdp, and has not started it; rank 0 waits in it"
    ]


def test_a_rank_that_has_called_no_collective_of_the_group_is_named(tmp_path: Path) -> None:
    dumps = {0: dump(entry(1, state="started"), groups=TWO), 1: dump(groups=TWO)}
    assert explained(tmp_path, dumps) == ["rank 1 never entered all-gather 1 of group fsdp; rank 0 waits in it"]


def test_a_rank_that_itself_waits_for_another_one_is_not_blamed(tmp_path: Path) -> None:
    """Rank 1 misses in the group of 0 and 1 because it waits for rank 2 in another group."""
    tensor = ("3", "mesh_tp")
    groups = {"1": ("mesh_fsdp", "[0, 1]"), "3": ("mesh_tp", "[1, 2]")}
    dumps = {
        0: dump(entry(5, state="started"), groups={"1": groups["1"]}),
        1: dump(entry(4), entry(8, "nccl:all_reduce", tensor, "started"), groups=groups),
        2: dump(entry(7, "nccl:all_reduce", tensor), groups={"3": groups["3"]}),
    }
    assert explained(tmp_path, dumps) == ["rank 2 never entered all-reduce 8 of group tp; rank 1 waits in it"]


def test_of_several_collectives_without_the_same_rank_the_one_that_was_called_first_comes_first(tmp_path: Path) -> None:
    world = ("0", "default_pg")
    groups = {"0": ("default_pg", "[0, 1, 2]"), "1": ("mesh_fsdp", "[1, 2]")}
    later = entry(1, "nccl:barrier", world, "started", time_created_ns=1_795_458_652_000_009_000)
    dumps = {
        0: dump(later, groups={"0": groups["0"]}),
        1: dump(entry(5, state="started"), groups=groups),
        2: dump(entry(4), groups=groups),
    }
    assert explained(tmp_path, dumps) == [
        "rank 2 never entered all-gather 5 of group fsdp; rank 1 waits in it",
        "rank 2 never entered barrier 1 of group default_pg; rank 0 waits in it",
    ]


def test_different_collectives_of_the_same_number_are_named(tmp_path: Path) -> None:
    dumps = {rank: dump(entry(5, state="started"), groups=FSDP) for rank in (0, 1, 2)}
    dumps[3] = dump(entry(5, "nccl:_reduce_scatter_base", state="started"), groups=FSDP)
    assert explained(tmp_path, dumps) == [
        "different collectives are number 5 of group fsdp: rank 3 in reduce-scatter; ranks 0, 1, 2 in all-gather"
    ]


def test_different_shapes_of_a_collective_are_named(tmp_path: Path) -> None:
    dumps = {rank: dump(entry(5, "nccl:all_reduce", state="started"), groups=FSDP) for rank in (0, 1, 3)}
    dumps[2] = dump(entry(5, "nccl:all_reduce", state="started", input_sizes=[[17]]), groups=FSDP)
    (sentence,) = explained(tmp_path, dumps)
    assert sentence.startswith("different shapes are number 5 of group fsdp: rank 2 in all-reduce of ['Float'] [[17]]")


def test_shapes_may_differ_where_torch_allows_it(tmp_path: Path) -> None:
    dumps = {rank: dump(entry(5, "nccl:all_to_all", state="started", input_sizes=[[rank]])) for rank in (0, 1)}
    assert explained(tmp_path, dumps) == ["ranks 0, 1 are all in all-to-all 5 of group fsdp, which does not end"]


def test_ranks_that_enter_collectives_of_two_groups_in_opposite_order_wait_for_each_other(tmp_path: Path) -> None:
    groups = {"1": ("mesh_fsdp", "[0, 1]"), "3": ("mesh_tp", "[0, 1]")}
    tensor = ("3", "mesh_tp")
    dumps = {
        0: dump(entry(5, state="started"), entry(7, "nccl:all_reduce", tensor), groups=groups),
        1: dump(entry(4), entry(8, "nccl:all_reduce", tensor, "started"), groups=groups),
    }
    (sentence,) = explained(tmp_path, dumps)
    assert sentence.startswith(
        "ranks wait for each other: rank 0 in all-gather 5 of group fsdp, without rank 1; rank 1"
    )


def test_a_receive_names_the_rank_that_does_not_send(tmp_path: Path) -> None:
    """The ranks in torch's name are those of the group."""
    dumps = {1: dump(transfer("nccl:recv 0<-1", 12), groups=PAIR), 3: dump(groups=PAIR)}
    assert explained(tmp_path, dumps) == ["rank 1 waits in recv 12 of group pp for rank 3"]


def test_a_send_and_its_receive_that_do_not_end_are_of_both_ranks(tmp_path: Path) -> None:
    dumps = {
        1: dump(transfer("nccl:recv 0<-1", 12), groups=PAIR),
        3: dump(transfer("nccl:send 1->0", 7), groups=PAIR),
    }
    assert explained(tmp_path, dumps) == ["ranks 1, 3 are both in recv 12 of group pp, which does not end"]
    long, short = dumped_after(dumps[1], 200), dumped_after(dumps[3], 0.5)
    assert explained(tmp_path, {1: long, 3: dumped_after(dumps[3], 200)}) == [
        "ranks 1, 3 are both in recv 12 of group pp, which does not end, since 3m20s"
    ]
    (sentence,) = explained(tmp_path, {1: dumped_after(dumps[1], 0.2), 3: short})
    assert sentence == "no rank has waited for another one for longer than 200 ms, as in a job that runs"
    assert long["muster"]["time_ns"] > short["muster"]["time_ns"]


def test_two_ranks_that_both_send_first_wait_for_each_other(tmp_path: Path) -> None:
    dumps = {
        1: dump(transfer("nccl:send 0->1", 4), transfer("nccl:recv 0<-1", 5, state="scheduled"), groups=PAIR),
        3: dump(transfer("nccl:send 1->0", 4), transfer("nccl:recv 1<-0", 5, state="scheduled"), groups=PAIR),
    }
    (sentence,) = explained(tmp_path, dumps)
    states = "rank 1 in send 4 of group pp, without rank 3; rank 3 in send 4 of group pp, without rank 1"
    assert sentence == f"ranks wait for each other: {states}"


@pytest.mark.parametrize("batched", [True, False], ids=["batch_isend_irecv", "isend and irecv"])
@pytest.mark.parametrize("ahead", [1000, 1], ids=["calls ahead of the device", "waits for each call"])
@pytest.mark.parametrize("stuck", range(4))
def test_of_a_pipeline_only_the_rank_that_stopped_is_named(
    tmp_path: Path, stuck: int, ahead: int, batched: bool
) -> None:
    for calls in range(len(launches(stuck, 4, batched))):
        sentences = explained(tmp_path, hung_pipeline(stuck, calls, batched, ahead=ahead))
        assert sentences, calls
        named = [re.fullmatch(r".* for rank (\d+)|rank (\d+) never entered .*", one) for one in sentences]
        assert {match and (match[1] or match[2]) for match in named} == {str(stuck)}, sentences


def test_of_a_batch_of_a_pipeline_its_number_and_directions_are_named(tmp_path: Path) -> None:
    """A step has 13 batches on rank 2, 15 on rank 1, 6 on rank 3. Rank 2 has ended 3 of the second step, or 2."""
    assert explained(tmp_path, hung_pipeline(2, 14 + 3, batched=True, ahead=1)) == [
        "rank 3 waits in send and recv 8 of group pp for rank 2",
        "rank 1 waits in send and recv 21 of group pp for rank 2",
    ]
    assert explained(tmp_path, hung_pipeline(2, 14 + 2, batched=True, ahead=1)) == [
        "rank 3 waits in send and recv 8 of group pp for rank 2",
        "rank 1 waits in send 19 of group pp for rank 2",
    ]


@pytest.mark.parametrize(("folder", "transfer"), [("batch", "send and recv 6"), ("single", "send 10")])
def test_on_gpus_the_rank_that_stopped_is_named(folder: str, transfer: str) -> None:
    """Rank 1 stopped before step 5, of which rank 0 has called an all-gather and a send and receive."""
    assert analyse_hang(DATA / "flight_recorder" / folder).sentences == (
        "rank 1 never entered all-gather 5 of group fsdp; rank 0 waits in it",
        f"rank 0 waits in {transfer} of group pp for rank 1",
    )


def test_the_same_is_found_from_what_a_collector_reports(tmp_path: Path) -> None:
    dumps = [read_dump(path) for path in write_dumps(tmp_path, hung_pipeline(2, 20, batched=True))]
    assert explain_hang([one.compact() for one in dumps]) == explain_hang(dumps)


def test_a_pipeline_that_has_ended_all_its_batches_does_not_hang(tmp_path: Path) -> None:
    assert explained(tmp_path, hung_pipeline(0, 1000, batched=True)) == []


def test_a_batch_does_not_hide_or_number_the_collectives_of_its_group(tmp_path: Path) -> None:
    group = ("1", "mesh_fsdp")
    ended = batch("send 0->1", "recv 0<-1", group=group, state="completed", collectives=9)
    dumps = {
        0: dump(entry(8), entry(9, state="started"), *ended, groups=TWO),
        1: dump(entry(8), groups=TWO),
    }
    assert explained(tmp_path, dumps) == ["rank 1 never entered all-gather 9 of group fsdp; rank 0 waits in it"]


def test_coalesced_collectives_that_have_ended_do_not_hang(tmp_path: Path) -> None:
    """As `all_gather` of different sizes: torch records a broadcast per rank, whose state never changes."""
    parts = [entry(5, "nccl:_broadcast_oop", state="scheduled") for _ in range(4)]
    ended = [*parts, entry(5, "nccl:coalesced", input_sizes=[], output_sizes=[])]
    assert explained(tmp_path, {rank: dump(*ended, groups=TWO) for rank in range(2)}) == []
    pending = [*parts, entry(5, "nccl:coalesced", state="scheduled", input_sizes=[], output_sizes=[])]
    dumps = {0: dump(*pending, groups=TWO), 1: dump(entry(4), groups=TWO)}
    assert explained(tmp_path, dumps) == ["rank 1 never entered broadcast-oop 5 of group fsdp; rank 0 waits in it"]


def test_shapes_of_coalesced_tensors_must_be_equal(tmp_path: Path) -> None:
    name = "nccl:all_gather_into_tensor_coalesced"
    dumps = {rank: dump(entry(5, name, state="started", input_sizes=[[rank], [4]]), groups=TWO) for rank in (0, 1)}
    (sentence,) = explained(tmp_path, dumps)
    assert sentence.startswith("different shapes are number 5 of group fsdp: rank 0 in all-gather-into-tensor-coal")


def test_a_rank_of_a_group_whose_members_are_unknown_is_not_blamed(tmp_path: Path) -> None:
    """torch's name of a receive has the place of the other rank in the group, not its number."""
    assert explained(tmp_path, {5: dump(transfer("nccl:recv 1<-0", 3)), 0: dump()}) == []
    world = transfer("nccl:recv 1<-0", 3, ("0", "default_pg"))
    assert explained(tmp_path, {1: dump(world), 0: dump()}) == ["rank 1 waits in recv 3 of group default_pg for rank 0"]


def test_members_without_a_dump_are_named_as_the_possible_cause(tmp_path: Path) -> None:
    inside = dump(entry(4), entry(5, state="started"), groups=FSDP)
    assert explained(tmp_path, dict.fromkeys((1, 2, 3), inside)) == [
        "rank 0 has no dump: it may have ended or be the cause; ranks 1, 2, 3 wait in all-gather 5 of group fsdp"
    ]
    assert explained(tmp_path, {3: inside}, {1: " in pod b"}) == [
        "ranks 0, 1, 2 have no dump: they may have ended or be the cause; rank 3 waits in all-gather 5 of group fsdp"
    ]


@pytest.mark.parametrize("missing", range(4))
def test_whichever_of_four_dumps_is_missing_its_rank_is_named_behind_the_known_culprit(
    tmp_path: Path, missing: int
) -> None:
    dumps = {rank: dump(entry(4), entry(5, state="started"), groups=FSDP) for rank in (0, 1, 3)}
    dumps[2] = dump(entry(4), groups=FSDP)
    del dumps[missing]
    waiting = ", ".join(str(rank) for rank in (0, 1, 3) if rank != missing)
    found = explained(tmp_path, dumps, {missing: " on node b"})
    absent = f"rank {missing} on node b has no dump: it may have ended or be the cause; "
    absent += f"ranks {waiting} wait in all-gather 5 of group fsdp"
    culprit = f"rank 2 never entered all-gather 5 of group fsdp; ranks {waiting} wait in it"
    assert found == ([absent] if missing == 2 else [culprit, absent])


def test_a_rank_that_waits_in_a_transfer_with_one_without_a_dump_names_it(tmp_path: Path) -> None:
    assert explained(tmp_path, {1: dump(transfer("nccl:recv 0<-1", 12), groups=PAIR)}) == [
        "rank 3 has no dump: it may have ended or be the cause; rank 1 waits in recv 12 of group pp"
    ]


def test_of_ranks_of_unknown_groups_those_below_the_highest_one_are_missing(tmp_path: Path) -> None:
    """torch's dumps of gloo do not have the ranks of the groups."""
    assert explained(tmp_path, {rank: dump(entry(5, state="started")) for rank in (1, 2)}) == [
        "rank 0 has no dump: it may have ended or be the cause; ranks 1, 2 wait in all-gather 5 of group fsdp"
    ]


def test_a_missing_dump_is_named_where_no_rank_waits(tmp_path: Path) -> None:
    write_dumps(tmp_path, {rank: dump(entry(5), groups=FSDP) for rank in (0, 2, 3)})
    assert analyse_hang(tmp_path).sentences == ("rank 1 has no dump; no other rank waits in a collective",)


WEIGHTS = ("5", "weights")
MANY = [entry(number, "nccl:all_reduce", ("6", "pair"), pg_id=6) for number in range(1, 2001)]
BOTH = {"5": ("weights", "[0, 1, 2]"), "6": ("pair", "[0, 1]")}


def status(entered: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": entered,
        "last_started_collective": entered,
        "last_completed_collective": entered,
    }


def in_broadcast(state: str = "started") -> dict[str, Any]:
    return dump(entry(5, "nccl:broadcast", WEIGHTS, state, pg_id=5), groups=BOTH)


def test_a_collective_that_newer_ones_have_overwritten_in_the_ring_was_entered(tmp_path: Path) -> None:
    """Rank 0, the root, is 2,000 collectives of another group past broadcast 5; rank 2 has not come to it."""
    past = dump(*MANY, groups=BOTH, overwritten=5) | {"pg_status": {"5": status(5), "6": status(2000)}}
    behind = dump(entry(4, "nccl:broadcast", WEIGHTS, pg_id=5), groups=BOTH)
    assert explained(tmp_path, {0: past, 1: in_broadcast(), 2: behind}) == [
        "rank 2 never entered broadcast 5 of group weights; rank 1 waits in it"
    ]
    assert explained(tmp_path, {0: past, 1: in_broadcast(), 2: in_broadcast()}) == [
        "ranks 1, 2 are in broadcast 5 of group weights, which does not end; rank 0 has ended it"
    ]


def test_a_rank_whose_status_is_behind_is_named_although_its_entries_are_overwritten(tmp_path: Path) -> None:
    behind = dump(*MANY, groups=BOTH, overwritten=5) | {"pg_status": {"5": status(4), "6": status(2000)}}
    assert explained(tmp_path, {0: behind, 1: in_broadcast(), 2: in_broadcast()}) == [
        "rank 0 never entered broadcast 5 of group weights; ranks 1, 2 wait in it"
    ]


@pytest.mark.parametrize("writer", ["launcher", "torch"])
def test_of_gloo_the_rank_that_stopped_is_named_and_not_the_one_that_has_gone_on(tmp_path: Path, writer: str) -> None:
    """Rank 0 has called 40 collectives of another group since all-reduce 5, and its ring holds 16."""
    folder = DATA / "flight_recorder" / "gloo" / writer
    (sentence,) = analyse_hang(folder).sentences
    assert sentence.startswith("rank 2 never entered all-reduce 5 of group weights; rank 1 waits in it")
    *others, _ = sorted(folder.iterdir())
    assert (
        analyse_hang(others)
        .sentences[0]
        .startswith(
            "rank 2 has no dump: it may have ended or be the cause; rank 1 waits in all-reduce 5 of group weights"
            if writer == "launcher"
            else "rank 1 is in all-reduce 5 of group weights, which does not end"  # members are not in torch's own dump
        )
    )


@pytest.mark.parametrize("known", [{}, {"5": status(5), "6": status(2000), "7": status(3)}], ids=["none", "ambiguous"])
def test_without_a_status_a_rank_with_overwritten_entries_is_not_said_to_be_missing(
    tmp_path: Path, known: dict[str, Any]
) -> None:
    past = dump(*MANY, groups=BOTH, overwritten=5) | {"pg_status": known}
    (sentence,) = explained(tmp_path, {0: past, 1: in_broadcast(), 2: in_broadcast()})
    unknown = "rank 0 has overwritten its entries of group weights (TORCH_FR_BUFFER_SIZE), and may be the cause"
    assert sentence == f"{unknown}; ranks 1, 2 wait in broadcast 5 of group weights"


def test_a_ring_that_has_not_wrapped_has_all_that_a_rank_entered(tmp_path: Path) -> None:
    few = dump(entry(1, "nccl:all_reduce", ("6", "pair"), pg_id=6), groups=BOTH)
    assert explained(tmp_path, {0: few, 1: in_broadcast(), 2: in_broadcast()}) == [
        "rank 0 never entered broadcast 5 of group weights; ranks 1, 2 wait in it"
    ]


def test_collectives_before_the_remaining_transfers_of_a_group_were_entered(tmp_path: Path) -> None:
    """An entry of a send has the number of the collective before it."""
    sends = [transfer("nccl:send 0->1", n, WEIGHTS, "completed") for n in range(1, 9)]
    past = dump(*(one | {"collective_seq_id": 5} for one in sends), groups=BOTH, overwritten=90)
    assert explained(tmp_path, {0: past, 1: in_broadcast(), 2: in_broadcast()}) == [
        "ranks 1, 2 are in broadcast 5 of group weights, which does not end; rank 0 has ended it"
    ]


def test_ranks_that_wait_for_nothing_have_no_sentence(tmp_path: Path) -> None:
    assert explained(tmp_path, {rank: dump(entry(5), groups=FSDP) for rank in range(4)}) == []


def test_ranks_that_wait_for_an_instant_do_not_hang(tmp_path: Path) -> None:
    """A job that runs: at any time a rank is a little ahead of another, or all are in the same collective."""
    ahead = {0: dump(entry(9), entry(10, state="started"), groups=TWO), 1: dump(entry(9), groups=TWO)}
    found = explained(tmp_path, {rank: dumped_after(one, 0.0125) for rank, one in ahead.items()})
    assert found == ["no rank has waited for another one for longer than 12.5 ms, as in a job that runs"]
    pair = {"1": ("mesh_fsdp", "[0, 1]")}
    same = {rank: dumped_after(dump(entry(10, state="started"), groups=pair), 0.0125) for rank in (0, 1)}
    assert explained(tmp_path, same) == []


def test_a_rank_may_have_entered_a_collective_after_its_dump(tmp_path: Path) -> None:
    """On a host under load, the launcher reaches the second rank seconds after the first one."""
    ahead = {0: dump(entry(9), entry(10, state="started"), groups=TWO), 1: dump(entry(9), groups=TWO)}
    times = {0: 4.0, 1: 0.5}
    found = explained(tmp_path, {rank: dumped_after(one, times[rank]) for rank, one in ahead.items()})
    assert found == ["no rank has waited for another one for longer than 500 ms, as in a job that runs"]
    apart = {0: 200.0, 1: 1.0}  # clocks of two hosts
    found = explained(tmp_path, {rank: dumped_after(one, apart[rank]) for rank, one in ahead.items()})
    assert found == ["rank 1 never entered all-gather 10 of group fsdp; rank 0 waits in it, since 3m20s"]


def test_a_long_wait_has_its_duration(tmp_path: Path) -> None:
    ahead = {0: dump(entry(9), entry(10, state="started"), groups=TWO), 1: dump(entry(9), groups=TWO)}
    assert explained(tmp_path, {rank: dumped_after(one, 200) for rank, one in ahead.items()}) == [
        "rank 1 never entered all-gather 10 of group fsdp; rank 0 waits in it, since 3m20s"
    ]
    pair = {"1": ("mesh_fsdp", "[0, 1]")}
    same = {rank: dumped_after(dump(entry(10, state="started"), groups=pair), 200) for rank in (0, 1)}
    assert explained(tmp_path, same) == [
        "ranks 0, 1 are all in all-gather 10 of group fsdp, which does not end, since 3m20s"
    ]


def test_dumps_above_the_limit_are_named_as_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_report, "MAX_FILES", 2)
    write_dumps(tmp_path, {rank: dump(entry(5), groups=FSDP) for rank in range(4)})
    report = analyse_hang(tmp_path)
    assert [one.rank for one in report.ranks] == [0, 1]
    assert [(one.file, one.reason) for one in report.skipped] == [
        ("nccl_trace_rank_2", "only the first 2 of 4 dumps are read")
    ]


def test_a_dump_that_is_deleted_while_the_folder_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2):
        (tmp_path / f"rank-{rank}.attempt-0.s1.pickle").write_bytes(b"")
    is_file = Path.is_file

    def listed(path: Path) -> bool:
        found = is_file(path)
        path.unlink() if found and path.name.startswith("rank-1") else None
        return found

    monkeypatch.setattr(Path, "is_file", listed)
    assert [path.name for path in find_dumps(tmp_path)] == ["rank-0.attempt-0.s1.pickle", "rank-1.attempt-0.s1.pickle"]


def test_of_each_rank_the_last_dump_of_the_newest_attempt_is_read(tmp_path: Path) -> None:
    names = ("0.attempt-0.stop", "0.attempt-1.s9", "0.attempt-1.sigterm", "1.attempt-1.sigterm", "1.attempt-1.stop")
    for name in names:
        (tmp_path / f"rank-{name}.pickle").write_bytes(b"")
    assert [path.name for path in find_dumps(tmp_path)] == [
        "rank-0.attempt-1.sigterm.pickle",
        "rank-1.attempt-1.stop.pickle",
    ]
