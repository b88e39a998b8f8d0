"""SQL over the summaries of traces: of the collector's files, or made of the traces."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.tracing.kineto import GpuRank, gpu_job

from muster.errors import InvalidSpec, InvalidTrace
from muster.tracing.analysis.query import query_traces
from muster.tracing.collect.event_totals import TotalsTable, encode_totals

KERNELS = "SELECT rank, name, calls FROM totals WHERE category = 'kernel' AND name LIKE '%gemm%' ORDER BY ALL"


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return sorted(gpu_job(tmp_path / "run", [GpuRank(), GpuRank(extra=2)]).iterdir())


def summary_beside(trace: Path, content: bytes) -> Path:
    folder = trace.parent / "summaries"
    folder.mkdir(exist_ok=True)
    path = folder / f"{trace.stem}.parquet"
    path.write_bytes(content)
    return path


def test_the_totals_of_traces_without_summaries_are_those_of_their_events(traces: list[Path]) -> None:
    found = query_traces(KERNELS, traces)
    assert found.columns == ("rank", "name", "calls")
    assert found.rows == ((0, "gemm", 32), (1, "extra_gemm", 8), (1, "gemm", 32))
    assert found.skipped == ()


def test_the_collectors_summary_is_taken_where_there_is_one(traces: list[Path]) -> None:
    table = TotalsTable(("kernel",), ("my_gemm",), (7,), (1.5,), (0.1,), (0.9,))
    summary_beside(traces[1], encode_totals(table))
    assert query_traces(KERNELS, traces).rows == ((0, "gemm", 32), (1, "my_gemm", 7))


@pytest.mark.parametrize(
    "content", [b"", b"PAR1 no parquet PAR1", encode_totals(TotalsTable((), (), (), (), (), ()))[:-9]]
)
def test_damaged_summaries_and_traces_are_skipped_with_the_reason(traces: list[Path], content: bytes) -> None:
    stored = summary_beside(traces[1], content)
    found = query_traces(KERNELS, traces)
    assert {row[0] for row in found.rows} == {0}
    assert [one.startswith(f"{traces[1]}: its summary cannot be read") for one in found.skipped] == [True]
    stored.unlink()
    traces[1].write_bytes(b"{")
    assert [str(traces[1]) in one for one in query_traces(KERNELS, traces).skipped] == [True]
    with pytest.raises(InvalidTrace, match="no trace can be read: "):
        query_traces(KERNELS, traces[1:])


def test_a_summary_that_is_a_link_or_pipe_is_not_followed(traces: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.write_bytes(encode_totals(TotalsTable(("kernel",), ("other_gemm",), (1,), (1.0,), (1.0,), (1.0,))))
    stored = summary_beside(traces[1], b"")
    stored.unlink()
    stored.symlink_to(target)
    expected = ((0, "gemm", 32), (1, "extra_gemm", 8), (1, "gemm", 32))  # the trace is summed
    assert query_traces(KERNELS, traces).rows == expected
    stored.unlink()
    os.mkfifo(stored)
    assert query_traces(KERNELS, traces).rows == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "COPY totals TO '{file}'",
        "ATTACH '{file}'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT missing FROM totals",
        "nonsense",
    ],
)
def test_a_query_reads_and_writes_no_file_and_errors_name_the_reason(
    traces: list[Path], tmp_path: Path, sql: str
) -> None:
    file = tmp_path / "file"
    with pytest.raises(InvalidSpec, match=r"^SQL: .+ Error: ") as caught:
        query_traces(sql.format(file=file), traces)
    assert caught.value.field == "SQL"
    assert not file.exists()
    assert not re.search(r"\n", str(caught.value))
