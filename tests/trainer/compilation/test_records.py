"""What torch compiled: graphs, recompilations with the guard that failed, graph breaks with their line."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.conftest import compilations

from muster_components.trainer.compilation.monitor import CompileMonitor
from muster_components.trainer.compilation.records import CompileRecorder, summary_line
from muster_components.trainer.context import run_context
from muster_components.trainer.reporter import Reporter

pytestmark = pytest.mark.slow


def test_recompilations_and_graph_breaks_have_their_reason_and_line() -> None:
    def broken(x: Any) -> Any:
        x = x * 2
        torch._dynamo.graph_break(msg="on purpose")
        return x + 1

    def twice(x: Any) -> Any:
        return x * 2

    recorder = CompileRecorder()
    assert recorder.read() == []
    torch.compile(broken, backend="eager")(torch.ones(2))
    compiled = torch.compile(twice, backend="eager", dynamic=False)
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    found = recorder.read()
    assert recorder.read() == []
    again = [record for record in found if record.kind == "graph" and record.reason]
    assert [record.function for record in again] == ["twice"]
    assert "size mismatch at index 0. expected 2, actual 3" in str(again[0].reason)
    (stop,) = (record for record in found if record.kind == "graph_break")
    assert (stop.file, stop.function) == (__file__, "broken")
    assert stop.line == inspect.getsourcelines(broken)[1] + 2
    assert "on purpose" in str(stop.reason)
    assert all(record.seconds > 0 for record in found if record.kind == "graph")
    assert summary_line(found).endswith("; 1 recompilation, 1 graph break")
    assert summary_line(found).startswith("compiled 4 graphs in ")


@pytest.mark.smoke
def test_a_compilation_after_the_first_step_is_an_event(tmp_path: Path) -> None:
    def thrice(x: Any) -> Any:
        return x * 3

    monitor = CompileMonitor(Reporter(run_context({"MUSTER_RUN_DIR": str(tmp_path)})), None)
    compiled = torch.compile(thrice, backend="eager", dynamic=False)
    for step in (1, 2, 3):
        compiled(torch.ones(2 if step < 3 else 4))
        assert monitor.compiled() == (step != 2)
        monitor.after_step(step)
    assert [(line["step"], line["kind"], line["function"]) for line in compilations(tmp_path)] == [
        (1, "graph", "thrice"),
        (3, "graph", "thrice"),
    ]
    (event,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert '"recompiled"' in event
    assert "step 3 compiled thrice" in event
    assert "size mismatch" in event
