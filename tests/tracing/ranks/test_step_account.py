"""The account of a typical step, and the first sentence of a report: where the time goes, whose fault, what to try."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from markupsafe import escape
from tests.cli.conftest import Muster, muster
from tests.tracing.kineto import DATA, Event, GpuRank, gpu_job, kernel, launch, step, training_steps, write_trace
from tests.tracing.run_folders import gpu_run_folder, page_of, text_of

from muster.tracing.account.step_slots import STEP_SLOTS
from muster.tracing.ranks.step_account import Use
from muster.tracing.report import build
from muster.tracing.verdicts import Cause

__all__ = ["muster"]  # a fixture
LATE = GpuRank(blocked=("data", 30.0, 1))


def saving(every: int) -> GpuRank:
    return GpuRank(blocked=("save_checkpoint", 1000.0, every))


@pytest.mark.parametrize("folder", sorted((DATA / "small").iterdir()), ids=lambda path: path.name)
def test_the_parts_of_each_rank_sum_to_its_step(tmp_path: Path, folder: Path) -> None:
    report = build(folder, tmp_path)
    assert report.account is not None
    for row in (*report.account.ranks, *report.account.longer):
        assert sum(part.ms for part in row.parts) == pytest.approx(row.ms)
    steps = {row.trace.rank or 0: row.trace.step_s for row in report.traces}
    if not report.account.longer:
        for row in report.account.ranks:
            assert row.ms == pytest.approx(1e3 * sum(steps[row.rank].values()) / len(steps[row.rank]))


def test_the_first_sentence_says_where_the_time_goes_whose_fault_it_is_and_what_to_try(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [GpuRank(), LATE], steps=6))
    assert report.headline.startswith(
        "A step takes 71.0 ms, 56.3% of it compute; rank 1 costs the others 29.5 ms a step"
    )
    assert report.headline.endswith(
        "because data loading blocks the host in 'data': try more DataLoader workers, prefetching, or faster storage."
    )
    assert page_of(report).count(f'<p class="headline">{escape(report.headline)}</p>') == 1
    assert report.headline in " ".join(text_of(report).split())


def test_the_console_and_json_of_analyze_begin_with_the_same_sentence(tmp_path: Path, muster: Muster) -> None:
    folder = gpu_job(tmp_path, [GpuRank(), LATE], steps=6)
    headline = build(folder, tmp_path / "out").headline
    assert " ".join(muster("trace", "analyze", str(folder)).out.split()).startswith(headline)
    found = json.loads(muster("trace", "analyze", str(folder), "--json").out)
    assert found["headline"] == headline
    account = found["account"]
    assert [row["rank"] for row in account["ranks"]] == [0, 1]
    for row in account["ranks"]:
        assert sum(row["parts_ms"].values()) == pytest.approx(row["ms"], abs=0.01)
    assert account["ranks"][1]["parts_ms"]["data"] == pytest.approx(30, abs=0.1)
    assert account["ranks"][1]["places_ms"]["data"] == {"data": account["ranks"][1]["parts_ms"]["data"]}


def test_a_clean_run_accuses_no_rank_and_names_the_largest_other_part(tmp_path: Path) -> None:
    headline = build(gpu_job(tmp_path, [GpuRank(), GpuRank()])).headline
    assert headline.startswith("A step takes 41.5 ms, 96.4% of it compute; no single rank makes the others wait")
    assert headline.endswith(
        "to try: record shapes (record_shapes=True), which show how well operators use the device."
    )


def test_a_checkpoint_in_one_step_is_no_part_of_a_typical_step_and_has_a_row_of_its_own(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [saving(4), saving(4)], steps=7))
    account = report.account
    assert account is not None
    assert (account.steps, account.longer_steps, [row.step for row in account.longer]) == (5, 2, [10, 14])
    assert account.step_ms == pytest.approx(41, abs=0.5)
    assert account.longer[0].of(Use.CHECKPOINT) == pytest.approx(1000, abs=1)
    assert "step 10 took 1.04 s, 1.00 s of it saving a checkpoint" in report.headline
    page = page_of(report)
    assert "Steps that took much longer" in page
    assert "% idle" not in page


def test_the_timeline_shows_the_step_in_which_the_cause_lies_and_marks_its_span(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [GpuRank(), saving(4)], steps=7))
    assert report.timeline_step in (10, 14)
    assert report.account is not None
    assert [len(one.uses) for one in report.account.slots] == [STEP_SLOTS] * 2
    use, start, end = max(report.account.slots[1].runs(), key=lambda run: run[2] - run[1])
    assert (use, end - start > 0.9 * STEP_SLOTS) == (Use.CHECKPOINT, True)
    page = page_of(report)
    assert 'id="span-1" href="#cause-1"' in page
    assert 'href="#span-1">in the timeline: save_checkpoint</a>' in page


def test_what_one_rank_of_several_waits_for_is_not_guessed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", training_steps(), world_size=3)
    headline = build(path).headline
    assert "no trace of ranks 1 and 2 shows whether this rank waits for it" in headline
    assert "no single rank makes the others wait" not in headline


def test_sends_and_receives_of_a_pipeline_are_named_as_those_of_stages(tmp_path: Path) -> None:
    report = build([DATA / "h200/pp.unbalanced/rank-0.json.gz", DATA / "h200/pp.unbalanced/rank-1.json.gz"], tmp_path)
    assert report.account is not None
    assert report.account.ranks[0].of(Use.STAGES) > report.account.ranks[1].of(Use.STAGES) > 0
    assert all(row.of(Use.WAITING) == row.of(Use.TRANSFER) == 0 for row in report.account.ranks)


def test_the_table_of_collectives_separates_waiting_from_transfer(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [GpuRank(), LATE], steps=6))
    (one,) = report.collective_times
    assert (one.name, one.calls) == ("allreduce", 12)
    assert one.transfer_ns / 1e6 == pytest.approx(6 * 2 * 1.0)
    assert one.waiting_ns / 1e6 == pytest.approx(6 * 29.5)
    _, _, kernels = page_of(report).partition("<h2>Top kernels</h2>")
    working, _, collectives = kernels.partition("<h2>Collectives</h2>")
    assert "nccl" not in working
    assert "waiting for the last rank" in collectives


def test_facts_include_step_time_lost_time_and_mfu(tmp_path: Path) -> None:
    page = page_of(build(gpu_job(tmp_path / "job", [GpuRank(), LATE], steps=6)))
    for name, value in (("step time", "71.0 ms"), ("lost time", "31.0 ms")):
        assert f"<dt>{name}</dt><dd>{value}" in page
    assert "MFU" not in page
    assert "<dt>MFU, by shapes</dt>" in page_of(build(DATA / "h200/pp.shapes/rank-0.json.gz", tmp_path / "shapes"))


def test_a_step_without_any_length_has_a_report(tmp_path: Path) -> None:
    events = [step(1, 0, 0), Event("aten::mm", 0, 0)]
    assert build(write_trace(tmp_path / "t.json", events)).headline.startswith("A step takes 0 µs")


def test_of_many_ranks_those_of_verdicts_have_a_bar(tmp_path: Path) -> None:
    ranks = [GpuRank(blocked=("data", 30.0, 1)) if rank == 17 else GpuRank() for rank in range(40)]
    page = page_of(build(gpu_run_folder(tmp_path / "run", ranks, steps=20)))
    bars = page.partition("Where the time of a step goes")[2].partition("<section>")[0]
    assert "<strong>rank 17</strong>" in bars
    assert bars.count("<strong>rank ") == 16
    assert "16 of 40 ranks are shown" in bars


def test_with_stacks_the_function_and_line_of_the_cause_are_named(tmp_path: Path, muster: Muster) -> None:
    report = build(DATA / "stacks.json.gz", tmp_path)
    assert report.source_line == "train.py(5): load"
    assert "in 'load_batch' (train.py(5): load): try more DataLoader workers" in report.headline
    page = page_of(report)
    assert '<a href="#source">train.py(5): load</a>' in page
    assert '<p id="source">' in page
    found = json.loads(muster("trace", "analyze", str(DATA / "stacks.json.gz"), "--json").out)
    assert found["source_line"] == report.source_line


def test_the_function_that_is_called_for_each_sample_is_named_and_not_the_loop_around_it(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        begin = number * 50_000.0
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events += [step(number, begin, 49_000), Event(loader, begin + 10, 40_000, "user_annotation")]
        events += [
            Event("train.py(30): main", begin, 49_000, "python_function"),
            Event("aten::mm", begin + 41_000, 900),
        ]
        for i in range(10):
            at = begin + 20 + i * 3990
            events += [Event("data.py(7): __getitem__", at, 3900, "python_function")]
            events += [Event("PIL/Image.py(2200): resize", at + 10, 3800, "python_function")]
    path = write_trace(tmp_path / "t.json", events)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"with_stack": 1}))
    report = build(path, tmp_path / "out")
    assert report.source_line == "data.py(7): __getitem__"
    assert "in 'DataLoader' (data.py(7): __getitem__)" in report.headline


def test_without_stacks_no_line_is_named(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [GpuRank(), LATE], steps=6))
    assert report.source_line == ""
    assert "source" not in page_of(report).partition("</style>")[2]


def test_with_stacks_the_module_is_the_place_and_not_its_operator(tmp_path: Path) -> None:
    """Thousands of kernels of a microsecond in one module."""
    events = []
    for number in range(4):
        begin = number * 50_000.0
        events += [step(number, begin, 50_000), Event("nn.Module: Net_0", begin, 49_990, "python_function")]
        events += [Event("nn.Module: Decoder_3", begin + 10, 49_970, "python_function")]
        for i in range(1000):
            at, of = begin + 100 + i * 49.8, number * 1000 + i
            events += [Event("aten::add_", at, 30), launch(of, at + 10), kernel("add", at + 12, 4, launch=of)]
    path = write_trace(tmp_path / "t.json", events)
    without = build(path, tmp_path / "without")
    assert [(v.cause, v.place.partition(" ")[0]) for v in without.verdicts] == [(Cause.LAUNCH_BOUND, "aten::add_")]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"with_stack": 1}))
    report = build(path, tmp_path / "with")
    assert report.verdicts[0].place == "Net_0 > Decoder_3"
    assert "aten::add_" in report.verdicts[0].evidence
    assert "in module Net_0 > Decoder_3" in report.findings[0]
    assert "in 'Net_0 > Decoder_3'" in report.headline
