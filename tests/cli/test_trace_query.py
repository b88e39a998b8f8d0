"""`muster trace query`: a table for people, rows as JSON, and errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.tracing.kineto import GpuRank, gpu_job

SQL = "SELECT rank, count(*) AS names, sum(total_us) AS us FROM totals GROUP BY rank ORDER BY rank"


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(gpu_job(tmp_path / "run", [GpuRank(), GpuRank(extra=2)]))


def test_the_result_is_a_table_or_a_list_of_objects(run: str, muster: Muster) -> None:
    ended = muster("trace", "query", SQL, run)
    assert (ended.code, ended.out.split()[:3]) == (0, ["rank", "names", "us"])
    rows = muster("trace", "query", SQL, run, "--json").rows
    assert [(row["rank"], set(row)) for row in rows] == [(0, {"rank", "names", "us"}), (1, {"rank", "names", "us"})]
    assert rows[1]["us"] > rows[0]["us"] > 0


def test_without_duckdb_the_package_is_named(run: str, muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ended = muster("trace", "query", SQL, run, "--json")
    assert (ended.code, ended.error["message"]) == (2, "trace query needs the package duckdb (pip install duckdb)")


def test_sql_that_is_refused_and_folders_without_traces_are_errors(run: str, muster: Muster, tmp_path: Path) -> None:
    ended = muster("trace", "query", "SELECT x FROM y", run, "--json")
    assert (ended.code, ended.error["field"]) == (2, "SQL")
    (tmp_path / "empty").mkdir()
    assert muster("trace", "query", SQL, str(tmp_path / "empty"), "--json").code == 2
