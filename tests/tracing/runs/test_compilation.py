"""The section "Compilation" of a report."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tracing.run_folders import HOSTILE, Page, page_of, run_folder, text_of

from muster.tracing.report import build, load
from muster.tracing.runs.compilation import CompilationCause, RankCompilation


def write_records(run: Path, rank: int, *records: object) -> None:
    file = run / "compilation" / f"rank-{rank}.jsonl"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def record(kind: str, *, attempt: int = 1, reason: str | None = None, **more: object) -> dict[str, object]:
    place = {"function": "forward", "file": "model.py", "line": 7}
    return {"kind": kind, "attempt": attempt, "step": 1, "seconds": 1.5, "reason": reason, **place, **more}


def test_ranks_and_causes_of_the_newest_attempt_are_in_report_page_and_terminal(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    for rank in (0, 1):
        write_records(
            run,
            rank,
            record("graph", attempt=0, cache_misses=9),
            record("graph", cache_hits=1, cache_misses=1),
            record("backward", cache_misses=1),
            record("graph", reason="0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3\n", cache_hits=2),
        )
    write_records(run, 1, record("graph_break", reason="Failed\n  Explanation: a print\n  Hint: none", seconds=0))
    report = build(run)
    found = report.compilation
    assert found is not None
    assert found.attempt == 1
    assert found.ranks == (RankCompilation(0, 2, 4.5, 3, 2, 1, 0), RankCompilation(1, 2, 4.5, 3, 2, 1, 1))
    place, guard = "forward (model.py:7)", "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3"
    assert found.causes == (
        CompilationCause("recompilation", place, guard, 2),
        CompilationCause("graph break", place, "Failed Explanation: a print", 1),
    )
    assert report.page is not None
    assert load(report.page).compilation == found
    text = " ".join(text_of(report, width=200).split())
    assert "Compilation rank 0 graphs 2, compile time 4.50 s, from the cache 3 of 5, recompilations 1" in text
    assert f"recompilation, 2x: {place}: {guard}" in text
    assert "<h2>Compilation</h2>" in page_of(report)
    assert "graph break, 1x: forward (model.py:7): Failed Explanation: a print" in page_of(report)


def test_without_records_there_is_no_section(tmp_path: Path) -> None:
    report = build(run_folder(tmp_path / "run"))
    assert report.compilation is None
    assert "Compilation" not in text_of(report)
    assert "<h2>Compilation</h2>" not in page_of(report)


def test_invalid_and_hostile_records_do_no_harm(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    write_records(run, 0, record("graph", seconds=-1), record("graph", seconds=1e300), record("new kind"), "text")
    write_records(run, 0, record("graph_break", reason=HOSTILE, function=HOSTILE))
    report = build(run)
    assert report.compilation is not None
    assert [rank.graph_breaks for rank in report.compilation.ranks] == [1]
    assert [(file.file, file.reason) for file in report.skipped if "compilation" in file.file] == [
        ("compilation/rank-0.jsonl", "cannot be read: 4 lines, starting with line 1")
    ]
    assert HOSTILE in text_of(report, width=1000)
    page = Page(page_of(report))
    assert not page.loads
    assert not {"script", "img"} & set(page.tags)
