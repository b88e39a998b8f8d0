"""`muster trace merge`: one trace of all ranks, for people and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.tracing.kineto import GpuRank, gpu_job
from tests.tracing.trace_event_format import read_valid_events


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return gpu_job(tmp_path / "run", [GpuRank(), GpuRank(extra=2)])


def test_a_folder_becomes_one_file_which_is_named_last(run: Path, muster: Muster, tmp_path: Path) -> None:
    out = tmp_path / "all.json.gz"
    ended = muster("trace", "merge", str(run), "-o", str(out))
    assert ended.code == 0
    first, *_, last = ended.out.splitlines()
    assert first.startswith("ranks 0, 1: ")
    assert "arrows" in first
    assert last == str(out)
    assert read_valid_events(out)


def test_json_has_ranks_clocks_and_what_was_skipped(run: Path, muster: Muster, tmp_path: Path) -> None:
    (run / "rank2.json").write_text('{"traceEvents": [')
    out = tmp_path / "all.json"
    ended = muster("trace", "merge", *map(str, sorted(run.iterdir())), "-o", str(out), "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["file"], found["ranks"]) == (0, str(out), [0, 1])
    assert [clock["rank"] for clock in found["clocks"]] == [0, 1]
    assert ["rank2.json" in one for one in found["skipped"]] == [True]
    assert found["events"] + found["links"] * 2 < len(read_valid_events(out))


def test_a_file_with_another_ending_or_none_is_refused(run: Path, muster: Muster, tmp_path: Path) -> None:
    for options in ([], ["-o", str(tmp_path / "all.zip")]):
        ended = muster("trace", "merge", str(run), *options, "--json")
        assert (ended.code, ended.error["field"]) == (2, "--out")
        assert "must be a file with a name that ends with .json or .json.gz" in ended.error["message"]


def test_a_file_within_the_folder_of_traces_is_refused_since_it_would_be_read_as_one(run: Path, muster: Muster) -> None:
    (run / "below").mkdir()
    for out in (run / "all.json", run / "below" / "all.json"):
        ended = muster("trace", "merge", str(run), "-o", str(out), "--json")
        assert (ended.code, ended.error["field"]) == (2, "--out")
        assert f"must be outside of {run}, whose files are read as traces" in ended.error["message"]
        assert not out.exists()


def test_a_folder_without_traces_is_refused(muster: Muster, tmp_path: Path) -> None:
    ended = muster("trace", "merge", str(tmp_path), "-o", str(tmp_path / "all.json"), "--json")
    assert (ended.code, ended.error["message"]) == (2, f"{tmp_path}: must have a trace")
