"""The collector's summary of each trace, and the ranks of its pod that have none."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from tests.tracing.kineto import Event, trace_text
from tests.tracing.spool import manifest_of, run_once, spooled

from muster.tracing.collect.event_totals import MAX_NAMES, OTHERS, EventTotals, TotalsTable, encode_totals
from muster.tracing.read.raw_events import RawEvent
from muster.tracing.runs.trace_files import MissingRanks

pytestmark = pytest.mark.usefixtures("undisturbed")
CONTENT = trace_text(
    [
        Event("aten::mm", 0, 10),
        Event("aten::mm", 20, 30),
        Event("ProfilerStep#1", 0, 60, "user_annotation"),
        Event("gemm", 5, 25, "kernel", stream=7),
    ]
)
ROWS = {
    "category": ["user_annotation", "cpu_op", "kernel"],
    "name": ["ProfilerStep#1", "aten::mm", "gemm"],
    "calls": [1, 2, 1],
    "total_us": [60.0, 40.0, 25.0],
    "min_us": [60.0, 10.0, 25.0],
    "max_us": [60.0, 30.0, 25.0],
}


def test_each_trace_has_a_summary_in_parquet(tmp_path: Path) -> None:
    spooled(tmp_path, content=CONTENT)
    assert run_once(tmp_path, "--store", str(tmp_path / "kept")) == 0
    (entry,) = manifest_of(tmp_path).traces
    assert entry.summary == "summaries/rank-0.attempt-0.steps-20-25.parquet"
    stored = (tmp_path / "kept/traces" / entry.summary).read_bytes()
    assert stored == (tmp_path / "traces" / entry.summary).read_bytes()
    assert pyarrow.parquet.read_table(io.BytesIO(stored)).to_pydict() == ROWS


def test_a_summary_needs_neither_pyarrow_nor_pandas_although_they_are_installed() -> None:
    program = (
        "import sys; from muster.tracing.collect.event_totals import TotalsTable, encode_totals;"
        "encode_totals(TotalsTable(('kernel',), ('k',), (1,), (1.5,), (0.5,), (1.0,)));"
        "print('pyarrow' in sys.modules, 'pandas' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program]) == b"False False\n"


@pytest.mark.parametrize(
    "columns",
    [
        (("cpu_op", "kernel"), ("加法::mm", ""), (3, 2**40), (1.5, 2.5), (0.5, 1.0), (1.0, 1e300)),
        ((), (), (), (), (), ()),
    ],
)
def test_a_summary_has_names_in_any_language_and_may_be_empty(columns: tuple[tuple[Any, ...], ...]) -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(encode_totals(TotalsTable(*columns))))
    assert tuple(map(tuple, table.to_pydict().values())) == columns
    assert list(map(str, table.schema.types)) == ["string", "string", "int64", "double", "double", "double"]


def test_a_corrupt_trace_has_no_summary(tmp_path: Path) -> None:
    spooled(tmp_path, content=CONTENT[:100])
    run_once(tmp_path)
    (entry,) = manifest_of(tmp_path).traces
    assert (entry.status, entry.summary) == ("corrupt", None)


def test_a_link_in_place_of_the_summaries_does_not_prevent_the_collection(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    spooled(tmp_path)
    (tmp_path / "traces/summaries").symlink_to(tmp_path / "elsewhere")
    assert run_once(tmp_path) == 0
    (entry,) = manifest_of(tmp_path).traces
    assert (entry.status, entry.summary) == ("ok", None)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_number_of_names_is_bounded() -> None:
    totals = EventTotals()
    totals.add([RawEvent(ph="X", name=f"name {i}", cat="cpu_op", ts=0, dur=1) for i in range(MAX_NAMES + 3)])
    assert len(totals.sums) == MAX_NAMES + 1
    assert totals.sums["cpu_op", OTHERS][0] == 3


def heartbeat(run_dir: Path, rank: int) -> None:
    (run_dir / "heartbeats").mkdir(exist_ok=True, parents=True)
    (run_dir / f"heartbeats/rank-{rank}.json").write_text(json.dumps({"rank": rank}))


def test_the_manifest_names_the_ranks_of_the_pod_without_a_trace(tmp_path: Path) -> None:
    spooled(tmp_path, 2)
    run_once(tmp_path, "--ranks", "2-4")
    assert manifest_of(tmp_path).missing == (MissingRanks(0, 20, 25, (3, 4)),)
    spooled(tmp_path, 4)
    run_once(tmp_path, "--ranks", "2-4")
    assert manifest_of(tmp_path).missing == (MissingRanks(0, 20, 25, (3,)),)
    spooled(tmp_path, 3)
    run_once(tmp_path, "--ranks", "2-4")
    assert manifest_of(tmp_path).missing == ()


def test_ranks_with_a_heartbeat_are_expected_if_the_pods_ranks_are_not_given(tmp_path: Path) -> None:
    for rank in (0, 1):
        heartbeat(tmp_path, rank)
    spooled(tmp_path, 0)
    run_once(tmp_path)
    assert manifest_of(tmp_path).missing == (MissingRanks(0, 20, 25, (1,)),)


def test_ranks_that_were_not_asked_for_a_trace_are_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_TRACE_RANKS", "0,1")
    spooled(tmp_path, 0)
    run_once(tmp_path, "--ranks", "0-3")
    assert manifest_of(tmp_path).missing == (MissingRanks(0, 20, 25, (1,)),)
    (tmp_path / "capture").mkdir()
    request = {"id": "a", "proposal": 1, "attempt": 0, "start_step": 20, "end_step": 25, "ranks": [0, 3]}
    (tmp_path / "capture/request.json").write_text(json.dumps(request))
    spooled(tmp_path, 0, content=CONTENT)
    run_once(tmp_path, "--ranks", "0-3")
    assert manifest_of(tmp_path).missing == (MissingRanks(0, 20, 25, (3,)),)
