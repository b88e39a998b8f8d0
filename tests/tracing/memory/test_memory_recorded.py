"""Snapshots that were recorded on an H200 (examples/10-memory) have the figures that torch's own functions find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.tracing.memory_snapshots import write_snapshot

from muster.tracing.memory import MemoryReport, analyse_memory, describe_advice
from muster.tracing.read.restricted_pickle import read_pickle

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "10-memory"
PLAIN, RECOMPUTING = EXAMPLE / "plain.pickle.gz", EXAMPLE / "full.pickle.gz"


@pytest.fixture(scope="module")
def report() -> MemoryReport:
    return analyse_memory(RECOMPUTING, before=PLAIN)


def test_the_activations_of_a_transformer_are_found_with_the_lines_of_the_model_that_was_compiled() -> None:
    (rank,) = analyse_memory(PLAIN).ranks
    assert rank.events == 9000
    shares = {category: round(held / rank.peak.in_use_bytes, 2) for category, held in rank.peak.by_category.items()}
    assert shares == {
        "parameter": 0.03,
        "gradient": 0.01,
        "optimizer_state": 0.07,
        "activation": 0.87,
        "input": 0.0,
        "temporary": 0.01,
        "unknown": 0.02,
    }
    largest = [(holder.place, holder.allocations) for holder in rank.peak.by_place[:3]]
    assert largest == [
        ("cross_entropy.py:59 forward", 1),
        ("transformer.py:182 gelu", 12),
        ("transformer.py:78 forward", 12),
    ]
    # 32 sequences of 1024 tokens with logits of 50304 in bf16
    assert rank.peak.by_place[0].bytes == 32 * 1024 * 50304 * 2
    assert rank.notes == ()


def test_recomputation_is_advised_and_applying_it_reduces_the_peak_by_less_than_the_bound(report: MemoryReport) -> None:
    (advice,) = analyse_memory(PLAIN).advice
    assert advice.kind == "recomputation"
    (changes,) = report.changes
    saved = changes.peak_before_bytes - changes.peak_after_bytes
    assert 0.6 * changes.peak_before_bytes < saved < advice.bytes
    assert -changes.by_category["activation"] == pytest.approx(saved, rel=0.02)


def test_recomputation_is_not_advised_twice_and_the_fragmentation_that_remains_is(report: MemoryReport) -> None:
    assert [advice.kind for advice in report.advice] == ["expandable-segments"]
    assert describe_advice(report.advice[0]).startswith("full: of 8.00 GiB reserved, 2.44 GiB (30.5%) was never in use")


def test_the_final_state_of_both_is_that_of_torchs_own_summary(report: MemoryReport) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    summary = viz.segsum(read_pickle(RECOMPUTING))
    state = report.ranks[0].allocator
    assert f"total_reserved: {viz.Bytes(state.reserved_bytes)}" in summary
    assert f"total_allocated: {viz.Bytes(state.requested_bytes)}" in summary


@pytest.mark.parametrize("first", [3000, 6000])
def test_parameters_and_states_of_a_recording_that_began_late_are_those_of_the_whole_one(
    tmp_path: Path, first: int
) -> None:
    """The same snapshot with the stacks and events of its newest part only. Its gradients are in bf16 before they are
    reduced, so there are copies of the parameters in bf16 as well."""
    raw: dict[str, Any] = read_pickle(PLAIN)
    events = raw["device_traces"][0]
    newest = {event["addr"]: place for place, event in enumerate(events) if event["action"] == "alloc"}
    for segment in raw["segments"]:
        for block in segment["blocks"]:
            if newest.get(block["address"], -1) < first:
                block["frames"] = []
    raw["device_traces"] = [events[first:]]
    (late,) = analyse_memory(write_snapshot(tmp_path / "late.pickle", raw)).ranks
    (whole,) = analyse_memory(PLAIN).ranks
    at_end = [rank.timeline[-1].by_category for rank in (late, whole)]
    for category in ("parameter", "optimizer_state"):
        assert at_end[0][category] == pytest.approx(at_end[1][category], rel=0.01)
    assert late.peak.by_category["parameter"] == pytest.approx(whole.peak.by_category["parameter"], rel=0.01)
