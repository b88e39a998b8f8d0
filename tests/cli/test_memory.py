"""memory: of snapshots, of a run folder, of a job, and of what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Muster
from tests.cli.memory import MemoryClient
from tests.cli.objects import job
from tests.tracing.memory_snapshots import MIB, ModelAllocator, Training, train, write_snapshot

ACTIVATIONS = Training(layers=(16 * MIB,) * 12, activation=160 * MIB)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for rank in (0, 1):
        path = tmp_path / "runs" / "llama" / "traces" / "spool" / f"rank-{rank}.attempt-0.steps-20-23.pickle"
        write_snapshot(path, train(ModelAllocator(), 3, ACTIVATIONS).snapshot())
    return tmp_path / "runs" / "llama"


def test_the_memory_of_a_run_names_advice_ranks_and_who_holds_the_peak(run_dir: Path, muster: Muster) -> None:
    ended = muster("memory", str(run_dir))
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0] == "llama: memory of 2 ranks, steps 20 to 22"
    assert lines[1].startswith(" • Ranks 0 and 1: rank 0: activations hold 1.88 GiB (")
    assert any(line.split() == ["1.88", "GiB", "75.5%", "12", "activation", "model.py:42", "forward"] for line in lines)
    assert "  1.88 GiB activation: model.py:42 forward < train.py:90 main" in lines


def test_the_memory_as_json_has_the_documented_keys(run_dir: Path, muster: Muster) -> None:
    ended = muster("memory", str(run_dir), "--json")
    report = json.loads(ended.out)
    assert list(report) == ["name", "folder", "ranks", "spread", "advice", "changes", "notes", "skipped"]
    documented = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "memory.md").read_text()
    keys = {*report, *report["ranks"][0], *report["ranks"][0]["peak"], *report["ranks"][0]["fragmentation"]}
    keys |= {*report["advice"][0], *report["ranks"][0]["allocator"], *report["spread"]}
    assert [key for key in sorted(keys) if f"`{key}`" not in documented] == []
    assert report["advice"][0]["kind"] == "recomputation"


def test_growth_since_an_earlier_snapshot_is_shown(tmp_path: Path, muster: Muster) -> None:
    leaking = Training(leak=4 * MIB)
    before = write_snapshot(tmp_path / "a.pickle", train(ModelAllocator(), 2, leaking).snapshot())
    after = write_snapshot(tmp_path / "b.pickle", train(ModelAllocator(), 4, leaking).snapshot())
    lines = [" ".join(line.split()) for line in muster("memory", str(after), "--compare", str(before)).out.splitlines()]
    assert "+8.00 MiB 8.00 MiB 16.0 MiB unknown train.py:77 log < train.py:90 main" in lines


def test_the_page_is_written_where_it_is_asked_for_and_its_path_is_printed_last(run_dir: Path, muster: Muster) -> None:
    page = run_dir / "pages" / "memory.html"
    ended = muster("memory", str(run_dir), "--html", str(page))
    assert ended.out.splitlines()[-1] == str(page)
    assert "Rank 1: memory over time" in page.read_text()


def test_the_snapshots_of_a_job_are_in_its_run_folder(run_dir: Path, cluster: MemoryClient, muster: Muster) -> None:
    assert run_dir == cluster.run_root / "llama"
    cluster.kept_jobs["llama"] = job("llama")
    assert muster("memory", "llama").out.splitlines()[0] == "llama: memory of 2 ranks, steps 20 to 22"


def test_what_is_no_snapshot_is_refused_with_the_file(tmp_path: Path, muster: Muster) -> None:
    (tmp_path / "a.pickle").write_bytes(b"{}")
    ended = muster("memory", str(tmp_path), "--json")
    assert ended.code == 2
    assert ended.error["reason"] == "InvalidTrace"
    assert "a.pickle: must be a pickle of a memory snapshot; it begins with b'{}'" in ended.error["message"]
    ended = muster("memory", "./missing", "--json")
    assert (ended.code, ended.error["reason"]) == (3, "NotFound")
    ended = muster("memory", str(tmp_path), "--max-memory", "much", "--json")
    assert (ended.code, ended.error["field"]) == (2, "--max-memory")
