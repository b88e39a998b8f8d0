"""The comparison of ranks: step times without waiting, waits, bandwidths, memory; and how the page shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.tracing.kineto import Event, GpuRank, gpu_job, step, training_steps, write_trace
from tests.tracing.run_folders import Page, gpu_run_folder, metrics_line, page_of, run_folder

from muster.tracing.ranks.step_grid import step_grid
from muster.tracing.report import Report, build, load


def titles(report: Report) -> list[str]:
    """The tooltips of the page's charts, and the headings of its sections."""
    page = page_of(report)
    return re.findall(r"<(?:title|h2)>([^<]*)</(?:title|h2)>", page) + re.findall(r' title="([^"]*)"', page)


def test_few_ranks_and_steps_have_a_cell_each() -> None:
    steps = np.arange(3, 6)
    grid = step_grid([(5, steps, np.array([1.0, 2.0, np.nan])), (2, steps[1:], np.array([3.0, 4.0]))])
    assert grid is not None
    assert grid.ranks == ((2, 2), (5, 5))
    assert grid.steps == ((3, 3), (4, 4), (5, 5))
    assert grid.seconds == ((None, 3.0, 4.0), (1.0, 2.0, None))
    assert grid.slowest == ((None, 2, 2), (5, 5, None))
    assert (grid.ranks_per_row, grid.steps_per_column) == (1, 1)


def test_many_ranks_and_steps_are_reduced_to_means_of_steps_and_the_slowest_of_ranks() -> None:
    steps = np.arange(1000)
    rows = [(rank, steps, np.full(1000, 1.0 + (rank == 77)) + (steps == 500)) for rank in range(130)]
    grid = step_grid(rows)
    assert grid is not None
    assert (grid.ranks_per_row, grid.steps_per_column) == (3, 13)
    assert (len(grid.seconds), {len(row) for row in grid.seconds}) == (44, {77})
    assert grid.ranks[25] == (75, 77)
    assert grid.ranks[-1] == (129, 129)
    assert grid.steps[38] == (494, 506)
    assert grid.steps[-1] == (988, 999)
    assert grid.seconds[25][0] == 2.0
    assert grid.slowest[25][0] == 77
    assert grid.seconds[0][38] == pytest.approx(1 + 1 / 13)
    assert grid.seconds[0][37] == 1.0


@pytest.mark.parametrize(
    "rows", [[], [(0, np.arange(3), np.ones(3))], [(r, np.arange(3), np.full(3, np.nan)) for r in (0, 1)]]
)
def test_without_two_ranks_there_is_no_grid(rows: list[tuple[int, np.ndarray, np.ndarray]]) -> None:
    assert step_grid(rows) is None


def test_step_times_without_waiting_differ_where_measured_step_times_are_equal(tmp_path: Path) -> None:
    """Ranks of 40 and 52 ms of kernels; each step ends with an all-reduce of 1 ms for both."""
    report = build(gpu_job(tmp_path, [GpuRank(), GpuRank(slowdown=1.3)]))
    grid = report.without_waiting
    assert grid is not None
    assert len({round(step.duration_s, 6) for row in report.traces for step in row.trace.steps}) == 1
    assert grid.steps == ((10, 10), (11, 11), (12, 12), (13, 13))
    fast, slow = (np.array(row, dtype=float) for row in grid.seconds)
    assert slow - fast == pytest.approx(0.012, abs=1e-6)
    assert slow == pytest.approx([step.duration_s for step in report.traces[1].trace.steps])
    shown = titles(report)
    assert "Step time without waiting" in shown
    assert "rank 0, step 10: 41.5 ms" in shown
    assert "rank 1, step 10: 53.5 ms" in shown


def test_waits_say_who_waits_and_for_whom(tmp_path: Path) -> None:
    report = build(gpu_job(tmp_path, [GpuRank(), GpuRank(slowdown=1.3), GpuRank()]))
    assert [wait.rank for wait in report.waits] == [0, 1, 2]
    assert [wait.waits_ms for wait in report.waits] == pytest.approx([12, 0, 12], abs=1e-3)
    assert [wait.awaited_ms for wait in report.waits] == pytest.approx([0, 12, 0], abs=1e-3)
    assert {"waits 12.0 ms per step for others", "others wait 12.0 ms per step for it"} <= set(titles(report))


def test_waits_in_collectives_that_overlap_are_counted_once(tmp_path: Path) -> None:
    """Rank 0 waits from 100 to 700 µs in one all-reduce and from 200 to 800 µs in another, as gloo runs them."""
    for rank, entries in enumerate([(100, 200), (700, 800)]):
        events = [step(20, 0, 1000)]
        for thread, entry in enumerate(entries, start=2):
            end = 510 + 100 * thread
            events.append(Event(f"gloo:all_reduce_{thread}", entry, end - entry, "user_annotation", thread))
        write_trace(tmp_path / f"{rank}.json", events, rank=rank, world_size=2)
    report = build(tmp_path)
    assert [wait.waits_ms for wait in report.waits] == pytest.approx([0.7, 0])
    assert [wait.awaited_ms for wait in report.waits] == pytest.approx([0, 0.7])
    assert report.without_waiting is not None
    assert np.array(report.without_waiting.seconds, dtype=float)[:, 0] == pytest.approx([0.0003, 0.001])


def test_the_bandwidth_of_collectives_is_that_of_nccl_tests(tmp_path: Path) -> None:
    """An all-reduce of 4 MiB on 4 ranks sends 1.5 times as much per rank, here in 1 ms."""
    report = build(gpu_job(tmp_path, [GpuRank() for _ in range(4)]))
    (kind,) = report.collectives
    assert (kind.name, kind.ranks, kind.message_bytes, kind.calls) == ("allreduce", 4, 4 << 20, 1.0)
    assert kind.transfer_ms == pytest.approx(1.0)
    assert kind.low_gb_s == pytest.approx(kind.high_gb_s)
    assert kind.bus_gb_s == pytest.approx(1.5 * 4.194304)
    assert "<strong>allreduce, 4.00 MiB</strong>" in page_of(report)
    assert "median 6.29 GB/s, 6.29 to 6.29; 1.00 per step on 4 ranks" in titles(report)


def test_traces_that_cannot_be_compared_have_no_comparison(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_trace(tmp_path / f"{name}.json", training_steps(), rank=0)
    report = build(tmp_path)
    assert (report.without_waiting, report.waits, report.collectives) == (None, (), ())
    assert {"Step time without waiting", "Waiting per rank", "Bandwidth of collectives"}.isdisjoint(titles(report))


def test_the_heat_map_of_the_metrics_appears_where_the_curves_leave_out_ranks(tmp_path: Path) -> None:
    four, five = (build(run_folder(tmp_path / f"{ranks}", ranks=ranks)) for ranks in (4, 5))
    assert "Step time of all ranks" not in titles(four)
    assert "Step time of all ranks" in titles(five)
    assert "rank 4, step 0: 2.00 s" in titles(five)


def test_the_page_of_64_ranks_and_1000_steps_is_small_and_says_how_it_aggregates(tmp_path: Path) -> None:
    report = build(gpu_run_folder(tmp_path / "run", [GpuRank() for _ in range(64)], steps=1000, traced=2))
    text = page_of(report)
    assert len(text.encode()) < 1_000_000
    assert Page(text).open == []
    assert "Each cell is the mean of 13 steps." in text
    assert "16 of 64 traces are shown." in text
    assert re.search("ranks? 63, steps 13–25: ", text)
    assert load(str(report.page)) == report


def test_the_timelines_shown_of_many_ranks_include_those_of_verdicts(tmp_path: Path) -> None:
    ranks = [GpuRank(slowdown=1.3 if rank == 17 else 1.0) for rank in range(40)]
    report = build(gpu_job(tmp_path, ranks))
    assert [verdict.ranks for verdict in report.verdicts] == [(17,)]
    timeline = page_of(report).partition("<h2>Timeline")[2].partition("</section>")[0]
    shown = re.findall(r"<strong>rank (\d+)</strong>", timeline)
    assert len(shown) == 16
    assert "17" in shown
    assert shown == sorted(shown, key=int)


def test_memory_is_shown_where_it_was_recorded_with_its_largest_values(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    assert "Memory per rank" not in titles(build(folder))
    for rank in (0, 1):
        lines = [metrics_line(i, memory_bytes=2**30 * (9 if rank == 1 and i == 700 else 3)) for i in range(900)]
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(lines))
    report = build(folder)
    assert [max(series.values) for series in report.memory] == [3 * 2**30, 9 * 2**30]
    assert [len(series.values) for series in report.memory] == [300, 300]
    shown = titles(report)
    assert "Memory per rank" in shown
    assert any(title.startswith("step ") and "rank 0: 3.00 GiB\nrank 1: 3.00 GiB" in title for title in shown)
    assert "</span>rank 1, up to 9.00 GiB</li>" in page_of(report)


def test_charts_show_loss_only_where_there_is_loss(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    assert "Loss" in titles(build(folder))
    for file in (folder / "metrics").iterdir():
        lines = [json.loads(line) | {"loss": None} for line in file.read_text().splitlines()]
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "Loss" not in titles(build(folder))


def test_the_values_of_all_curves_are_in_tooltips(tmp_path: Path) -> None:
    shown = titles(build(run_folder(tmp_path / "run")))
    assert "step 3\nrank 0: 100 ms\nrank 1: 100 ms" in shown
    assert "step 39\nloss: 2.56" in shown


def test_names_of_collectives_are_escaped_in_the_comparison(tmp_path: Path) -> None:
    for file in gpu_job(tmp_path, [GpuRank(), GpuRank()]).iterdir():
        file.write_text(file.read_text().replace('"allreduce"', '"<b>x"'))
    page = Page(page_of(build(tmp_path)))
    assert "b" not in page.tags
    assert "<b>x, 4.00 MiB" in page.texts
