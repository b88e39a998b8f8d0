"""`muster trace table` and `muster trace counters`: traces by run and rank, tables for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.tracing.kineto import Event, GpuRank, gpu_job, write_trace

from muster.cli.trace_tables import TABLE_NAMES
from muster.tracing.trace_tables import TABLES


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(gpu_job(tmp_path / "run", [GpuRank(), GpuRank(extra=2)]))


def test_a_table_has_the_rows_of_each_trace(run: str, muster: Muster) -> None:
    ended = muster("trace", "table", "kernels", run, "--json")
    assert [(row["rank"], row["name"], row["calls"]) for row in ended.rows if row["kind"] == "compute"] == [
        *((0, "gemm", 32), (1, "gemm", 32), (1, "extra_gemm", 8))
    ]
    assert {row["trace"] for row in ended.rows} == {"rank0.json", "rank1.json"}


def test_a_table_for_people_has_a_heading_for_each_trace(run: str, muster: Muster) -> None:
    ended = muster("trace", "table", "launches", run, "--limit", "3")
    assert ended.code == 0
    assert "rank 0 (rank0.json): 36 rows, of which the first 3" in ended.out
    assert len(ended.out.splitlines()) == 2 * (1 + 1 + 3)


def test_rank_selects_the_traces_of_one_rank(run: str, muster: Muster) -> None:
    ended = muster("trace", "table", "queue-lengths", run, "--rank", "1", "--json")
    assert {row["rank"] for row in ended.rows} == {1}
    ended = muster("trace", "table", "queue-lengths", run, "--rank", "7", "--json")
    assert (ended.code, ended.error["message"]) == (2, f"{run}: must have a readable trace of rank 7")


def test_unreadable_traces_are_named_and_the_others_shown(run: str, muster: Muster) -> None:
    (Path(run) / "rank0.json").write_text('{"traceEvents": [')
    ended = muster("trace", "table", "kernels", run)
    assert ended.code == 0
    assert "rank 1 (rank1.json)" in ended.out
    assert "skipped: " in ended.err


def test_unknown_tables_and_missing_operators_are_refused(run: str, muster: Muster) -> None:
    ended = muster("trace", "table", "kernel", run, "--json")
    assert (ended.code, ended.error["field"]) == (2, "NAME")
    assert "queue-lengths" in ended.error["message"]
    ended = muster("trace", "table", "sequences", run, "--json")
    assert (ended.code, ended.error["field"]) == (2, "--operator")


def test_help_has_every_table(muster: Muster) -> None:
    assert set(TABLE_NAMES) == set(TABLES)
    text = muster("trace", "table", "--help").out
    for name, table in TABLES.items():
        assert f"{name} " in text
        assert table.title in text


def test_counters_writes_a_copy_of_each_trace(run: str, tmp_path: Path, muster: Muster) -> None:
    ended = muster("trace", "counters", run, "--out", str(tmp_path / "copies"))
    assert ended.out.splitlines() == [str(tmp_path / "copies" / f"rank{rank}.counters.json.gz") for rank in (0, 1)]
    again = muster("trace", "table", "kernels", ended.out.splitlines()[1], "--json")
    assert json.dumps([row["calls"] for row in again.rows]) == "[32, 8, 4]"


def test_a_table_without_rows_says_what_the_trace_lacks(run: str, tmp_path: Path, muster: Muster) -> None:
    trace = str(write_trace(tmp_path / "cpu.json", [Event("aten::mm", 10, 5)], rank=3))
    for name in TABLE_NAMES:
        text = muster("trace", "table", name, trace, "--operator", "mm").out
        lacking = "hardware counters of kernels" if name == "kernel-counters" else "work of a GPU"
        assert text.startswith(f"rank 3 (cpu.json): 0 rows: the trace has no {lacking}"), name
        assert muster("trace", "table", name, trace, "--operator", "mm", "--json").rows == []
    text = muster("trace", "table", "memory-bandwidth", run).out
    assert "rank 1 (rank1.json): 0 rows: the trace has no copies or memsets with a bandwidth" in text


def test_a_name_with_line_ends_and_escape_sequences_is_one_line(tmp_path: Path, muster: Muster) -> None:
    name = "k\n  forged    compute  99\r\x1b[31m\x1b]0;title\x07"
    (tmp_path / "t.json").write_text(
        json.dumps({"traceEvents": [{"ph": "X", "cat": "kernel", "name": name, "ts": 1, "dur": 2}]})
    )
    text = muster("trace", "table", "kernels", str(tmp_path / "t.json")).out
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
