"""Memory of a run: which rank peaks, what grew, and advice where the numbers support it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.tracing.memory_snapshots import (
    BACKWARD,
    FORWARD,
    GIB,
    MIB,
    RECOMPUTE,
    SCRATCH,
    ModelAllocator,
    OutOfDeviceMemory,
    Training,
    train,
    write_snapshot,
)

from muster.errors import InvalidTrace
from muster.tracing.memory import Advice, MemoryReport, analyse_memory, describe_advice
from muster.tracing.memory.memory_text import report_sentences
from muster.tracing.memory.page import render_page, write_page

BALANCED = Training(layers=(32 * MIB,) * 3, activation=24 * MIB, scratch=8 * MIB)
MUCH_STATE = Training(layers=(256 * MIB,) * 4, activation=24 * MIB)
MUCH_ACTIVATION = Training(layers=(16 * MIB,) * 12, activation=160 * MIB)


def report_of(tmp_path: Path, *trainings: Training, steps: int = 3, name: str = "rank-{}.pickle") -> MemoryReport:
    files = [
        write_snapshot(tmp_path / name.format(rank), train(ModelAllocator(), steps, training).snapshot())
        for rank, training in enumerate(trainings)
    ]
    return analyse_memory(files)


def advice_of(report: MemoryReport) -> list[Advice]:
    return list(report.advice)


def test_a_run_that_wastes_nothing_gets_no_advice(tmp_path: Path) -> None:
    assert advice_of(report_of(tmp_path, BALANCED)) == []


def test_recomputation_is_advised_where_activations_dominate_and_are_not_recomputed(tmp_path: Path) -> None:
    (advice,) = advice_of(report_of(tmp_path, MUCH_ACTIVATION))
    assert (advice.kind, advice.ranks, advice.bytes) == ("recomputation", ("0",), 12 * 160 * MIB)
    assert describe_advice(advice).startswith("Rank 0: activations hold 1.88 GiB (")
    recomputing = Training(layers=(16 * MIB,) * 2, activation=1600 * MIB, recompute=True)
    assert "recomputation" not in {advice.kind for advice in advice_of(report_of(tmp_path, recomputing))}


def test_offload_is_advised_where_activations_dominate_although_some_are_recomputed(tmp_path: Path) -> None:
    """The activations of one of two places are 49% of the peak."""
    allocator = ModelAllocator()
    kept = [allocator.alloc(160 * MIB, stack) for _ in range(8) for stack in (FORWARD, SCRATCH)]
    recomputed = allocator.alloc(32 * MIB, RECOMPUTE)
    for address in (*kept, recomputed):
        allocator.free(address, BACKWARD)
    path = write_snapshot(tmp_path / "a.pickle", allocator.snapshot())
    (advice,) = advice_of(analyse_memory(path))
    assert (advice.kind, advice.bytes) == ("offload-activations", (8 * 160 + 32) * MIB)
    assert "--offload_activations" in advice.advice


def test_offload_is_not_advised_for_the_activations_of_one_place(tmp_path: Path) -> None:
    """Such as the logits, which the next operator needs on the GPU."""
    allocator = ModelAllocator()
    for address in (allocator.alloc(1600 * MIB, FORWARD), allocator.alloc(32 * MIB, RECOMPUTE)):
        allocator.free(address, BACKWARD)
    assert advice_of(analyse_memory(write_snapshot(tmp_path / "a.pickle", allocator.snapshot()))) == []


def test_sharding_is_advised_where_the_state_of_the_optimizer_dominates(tmp_path: Path) -> None:
    (advice,) = advice_of(report_of(tmp_path, MUCH_STATE, MUCH_STATE))
    assert (advice.kind, advice.ranks, advice.bytes) == ("shard-optimizer-state", ("0", "1"), 8 * 256 * MIB)
    assert advice.evidence.startswith("rank 0: the optimizer's state holds 2.00 GiB (")


def fragmented(size: int, count: int, then: int, capacity: int) -> ModelAllocator:
    """`count` segments of `size` that stay a quarter full, and then larger allocations."""
    allocator = ModelAllocator(capacity)
    for address in [allocator.alloc(size, FORWARD) for _ in range(count)]:
        allocator.free(address, FORWARD)
    for _ in range(count):
        allocator.alloc(3 * size // 4, BACKWARD)
    with suppress(OutOfDeviceMemory):
        allocator.alloc(then, FORWARD)
    return allocator


def test_expandable_segments_are_advised_where_memory_is_reserved_in_pieces(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "a.pickle", fragmented(400 * MIB, 8, 600 * MIB, 80 * GIB).snapshot())
    (advice,) = advice_of(analyse_memory(path))
    assert (advice.kind, advice.bytes) == ("expandable-segments", 600 * MIB)
    assert advice.evidence == (
        "of 3.71 GiB reserved, 600 MiB (15.8%) was never in use together with the rest in the recording"
    )
    raw = fragmented(400 * MIB, 8, 600 * MIB, 80 * GIB).snapshot()
    raw["allocator_settings"]["expandable_segments"] = True
    assert advice_of(analyse_memory(write_snapshot(tmp_path / "b.pickle", raw))) == []


def test_expandable_segments_are_advised_where_an_allocation_failed_although_enough_was_free(tmp_path: Path) -> None:
    path = write_snapshot(tmp_path / "a.pickle", fragmented(100 * MIB, 4, 90 * MIB, 450 * MIB).snapshot())
    (advice,) = advice_of(analyse_memory(path))
    assert advice.kind == "expandable-segments"
    assert advice.evidence == (
        "an allocation of 90.0 MiB failed while 100 MiB of the reserved memory was free in pieces,"
        " the largest of 25.0 MiB"
    )
    path = write_snapshot(tmp_path / "b.pickle", fragmented(100 * MIB, 4, 900 * MIB, 450 * MIB).snapshot())
    assert advice_of(analyse_memory(path)) == []


def test_the_rank_with_the_highest_peak_is_compared_with_the_median(tmp_path: Path) -> None:
    more = Training(layers=BALANCED.layers, activation=64 * MIB, scratch=8 * MIB)
    report = report_of(tmp_path, BALANCED, BALANCED, more)
    assert report.spread is not None
    assert (report.spread.highest, report.spread.median, report.spread.category) == ("2", "1", "activation")
    assert report.spread.above_bytes == report.ranks[2].peak.in_use_bytes - report.ranks[1].peak.in_use_bytes > 0
    assert report.spread.category_bytes == 3 * 64 * MIB - 24 * MIB  # the other ranks peak later in the backward pass
    (sentence,) = report_sentences(report)
    assert re.match(r"Rank 2 has the highest peak, \d+ MiB: [\d.]+% above the median \(rank 1, ", sentence)
    assert report_of(tmp_path, BALANCED).spread is None


def test_growth_between_two_snapshots_is_named_by_stack_at_the_peak_and_at_the_end(tmp_path: Path) -> None:
    leaking = Training(layers=BALANCED.layers, activation=BALANCED.activation, scratch=8 * MIB, leak=5 * MIB)
    before = write_snapshot(tmp_path / "a.pickle", train(ModelAllocator(), 2, leaking).snapshot())
    after = write_snapshot(tmp_path / "b.pickle", train(ModelAllocator(), 6, leaking).snapshot())
    (changes,) = analyse_memory(after, before=before).changes
    (grown,) = changes.at_end
    assert (grown.place, grown.before_bytes, grown.after_bytes) == ("train.py:77 log", 10 * MIB, 30 * MIB)
    assert grown.frames == ("/home/user/train.py:77:log", "/home/user/train.py:90:main")
    assert changes.end_after_bytes - changes.end_before_bytes == grown.grown_bytes == 20 * MIB
    assert changes.by_category["activation"] == 0
    assert [change.place for change in changes.at_peak] == ["train.py:77 log"]
    assert analyse_memory(after, before=after).changes[0].at_end == ()


def test_the_snapshots_of_several_ranks_are_compared_by_rank(tmp_path: Path) -> None:
    report_of(tmp_path / "old", BALANCED, BALANCED)
    report_of(tmp_path / "new", BALANCED, MUCH_STATE)
    report = analyse_memory(tmp_path / "new", before=tmp_path / "old")
    assert [changes.label for changes in report.changes] == ["0", "1"]
    assert report.changes[0].at_peak == ()
    assert report.changes[1].by_category["optimizer_state"] > 0
    one = train(ModelAllocator(), 1, BALANCED).snapshot()
    others = [write_snapshot(tmp_path / f"rank{rank}.pickle", one) for rank in (7, 8)]
    with pytest.raises(InvalidTrace, match="no snapshot to compare with is of the same rank; those given are of 7, 8"):
        analyse_memory(tmp_path / "new", before=others)


def test_of_a_run_folder_the_newest_attempt_and_steps_are_analysed_and_the_others_mentioned(tmp_path: Path) -> None:
    raw = train(ModelAllocator(), 1, BALANCED).snapshot()
    names = ("rank-{}.attempt-0.steps-40-43", "rank-{}.attempt-1.steps-10-13", "rank-{}.attempt-1.steps-20-23")
    for name in names:
        for rank in (10, 9):
            write_snapshot(tmp_path / "run" / "traces" / "spool" / f"{name.format(rank)}.pickle", raw)
    report = analyse_memory(tmp_path / "run")
    assert [(rank.rank, rank.attempt, rank.steps) for rank in report.ranks] == [(9, 1, (20, 23)), (10, 1, (20, 23))]
    assert report.name == "run"
    assert report.notes == ("snapshots of steps 20 to 22 are analysed; 2 other windows not",)


def test_ranks_are_found_in_the_names_of_other_files_else_the_name_is_shown(tmp_path: Path) -> None:
    raw = train(ModelAllocator(), 1, BALANCED).snapshot()
    for name in ("host_rank3.pickle", "mem-Rank_12.pickle", "oom.pickle"):
        write_snapshot(tmp_path / name, raw)
    assert [rank.label for rank in analyse_memory(tmp_path).ranks] == ["3", "12", "oom"]


def test_files_that_cannot_be_read_are_skipped_with_the_reason_and_none_is_an_error(tmp_path: Path) -> None:
    report_of(tmp_path, BALANCED)
    (tmp_path / "rank-1.pickle").write_bytes(b"\x80\x04")
    (skipped,) = analyse_memory(tmp_path).skipped
    assert (skipped.file, skipped.reason) == ("rank-1.pickle", "truncated: the file ends at byte 2 inside the pickle")
    (tmp_path / "rank-1.pickle").write_bytes(b"")
    report = analyse_memory(tmp_path)
    (skipped,) = report.skipped
    assert [rank.label for rank in report.ranks] == ["0"]
    assert (skipped.file, skipped.reason) == (
        "rank-1.pickle",
        "must be a pickle of a memory snapshot; the file is empty",
    )
    (tmp_path / "rank-1.pickle").write_bytes(b"\x80\x04")
    with pytest.raises(InvalidTrace, match=r"rank-1\.pickle: truncated"):
        analyse_memory(tmp_path / "rank-1.pickle")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidTrace, match="contains no memory snapshot"):
        analyse_memory(tmp_path / "empty")


def test_a_recording_that_begins_late_has_parameters_and_optimizer_states(tmp_path: Path) -> None:
    raw = train(ModelAllocator(), 3, MUCH_STATE, record_from_step=2).snapshot()
    (rank,) = analyse_memory(write_snapshot(tmp_path / "rank-0.pickle", raw)).ranks
    held = rank.peak.by_category
    assert (held["parameter"], held["optimizer_state"]) == (4 * 256 * MIB, 8 * 256 * MIB)
    assert "unknown" not in held
    assert rank.notes == ()


def test_a_recording_without_a_backward_pass_says_that_most_memory_is_unknown(tmp_path: Path) -> None:
    allocator = train(ModelAllocator(), 3, MUCH_STATE, record_from_step=3)
    allocator.free(allocator.alloc(MIB, SCRATCH), SCRATCH)
    (rank,) = analyse_memory(write_snapshot(tmp_path / "rank-0.pickle", allocator.snapshot())).ranks
    assert rank.peak.by_category["unknown"] == 4 * 256 * MIB + 8 * 256 * MIB
    assert any(note.startswith("most of the memory was allocated before the recording") for note in rank.notes)


def test_several_processes_read_the_ranks_with_the_same_result(tmp_path: Path) -> None:
    report = report_of(tmp_path, BALANCED, MUCH_STATE)
    assert analyse_memory(tmp_path, name=report.name, workers=2) == report


def test_the_page_escapes_names_needs_nothing_from_outside_and_shows_the_peak(tmp_path: Path) -> None:
    hostile = "<script>alert(1)<b>.pickle"
    write_snapshot(tmp_path / hostile, train(ModelAllocator(), 3, MUCH_ACTIVATION).snapshot())
    (tmp_path / "b.pickle").write_bytes(b"")
    page = render_page(analyse_memory(tmp_path))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;b&gt;" in page
    assert not re.search(r"https?://|@import|url\(", page)
    assert "peak 2." in page
    assert "model.py:42 forward" in page
    areas, _, maps = page.partition("<h2>Segments</h2>")
    assert areas.count('class="m-activation"') == 1
    assert maps.count('class="m-activation"') == 12
    assert 'class="hover"' in page


def test_the_page_replaces_an_earlier_one_and_the_report_is_plain_data(tmp_path: Path) -> None:
    report = report_of(tmp_path, BALANCED, MUCH_STATE)
    for _ in range(2):
        write_page(report, tmp_path / "pages" / "memory.html")
    assert [path.name for path in (tmp_path / "pages").iterdir()] == ["memory.html"]
    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(report)), MemoryReport) == report
