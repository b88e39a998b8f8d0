"""Compiled graphs are named by the function and line that was compiled."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tracing.kineto import Event, step, write_trace
from tests.tracing.run_folders import metrics_line, text_of

from muster.tracing.report import build
from muster.tracing.work.operator_stats import short_name


def graph(name: str, start: float) -> Event:
    return Event(f"## Call CompiledFxGraph {name} ##", start, 50, "user_annotation")


def region(compile_id: str, start: float) -> Event:
    return Event(f"Torch-Compiled Region: {compile_id}", start - 5, 60, "cpu_op")


def run(folder: Path, records: list[dict[str, object]]) -> Path:
    """Two blocks that share a graph and a head, forward and then backward, in each of three steps."""
    events = []
    for number in range(3):
        at = 1000.0 * number
        events.append(step(5 + number, at, 1000))
        for i, (compile_id, name) in enumerate((("0/0", "faaa"), ("0/0", "faaa"), ("1/0", "fhead"))):
            events += [region(compile_id, at + 10 + 100 * i), graph(name, at + 10 + 100 * i)]
        events += [graph(name, at + 400 + 100 * i) for i, name in enumerate(("fheadback", "faback", "faback"))]
    for name in ("metrics", "compilation"):
        (folder / name).mkdir(parents=True)
    (folder / "metrics/rank-0.jsonl").write_text("".join(metrics_line(i) for i in range(9)))
    write_trace(folder / "traces/spool/rank-0.attempt-0.steps-5-8.json", events)
    (folder / "compilation/rank-0.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def record(compile_id: str, function: str, line: int) -> dict[str, object]:
    return {"kind": "graph", "compile_id": compile_id, "function": function, "file": "/src/model.py", "line": line}


def test_graphs_are_named_by_the_records_of_the_trainer_also_those_of_the_backward_pass(tmp_path: Path) -> None:
    report = build(run(tmp_path, [record("0/0", "forward", 12), record("1/0", "loss", 40)]))
    assert {op.name: op.calls for op in report.operators} == {
        "compiled forward (model.py:12)": 6,
        "compiled backward of forward (model.py:12)": 6,
        "compiled loss (model.py:40)": 3,
        "compiled backward of loss (model.py:40)": 3,
    }
    assert "compiled backward of loss (model.py:40)" in text_of(report, width=140)


def test_without_records_they_are_named_by_the_id_of_their_compilation(tmp_path: Path) -> None:
    names = {op.name for op in build(run(tmp_path, [])).operators}
    assert names == {
        *("compiled region 0/0", "compiled backward of region 0/0"),
        *("compiled region 1/0", "compiled backward of region 1/0"),
    }


def test_names_of_graphs_stay_whole_in_tables() -> None:
    assert short_name("compiled forward (model.py:12)") == "compiled forward (model.py:12)"
