"""Events about configured steps that are not reached, recorded by rank 0 for all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_components.trainer.config import parse_trace_config
from muster_components.trainer.context import run_context
from muster_components.trainer.reporter import Reporter, TraceWindow

from .conftest import events


def window(folder: Path, steps: str, ranks: str = "", rank: int = 0) -> TraceWindow:
    context = run_context({"MUSTER_RUN_DIR": str(folder), "RANK": str(rank), "WORLD_SIZE": "4"})
    return TraceWindow(parse_trace_config(steps, ranks), context, Reporter(context))


def kinds(folder: Path) -> list[str]:
    return [kind for kind in ("trace_planned", "trace_missed") for _ in events(folder, kind)]


@pytest.mark.parametrize(
    ("steps", "ranks", "first", "last", "done", "expected"),
    [
        ("20:25", "", 1, 60, 60, ["trace_planned"]),
        ("20:25", "3", 1, 60, 22, ["trace_planned"]),
        ("58:65", "", 1, 60, 60, ["trace_planned"]),
        ("20:25", "", 22, 60, 60, ["trace_planned"]),
        ("200:205", "", 1, 60, 60, ["trace_missed"]),
        ("200:205", "3", 1, 60, 60, ["trace_missed"]),
        ("20:25", "", 1, 60, 12, ["trace_planned", "trace_missed"]),
        ("200:205", "", 2, None, 60, ["trace_planned", "trace_missed"]),
        ("5:8", "", 2, None, 0, ["trace_planned", "trace_missed"]),
        ("1:2", "", 2, None, 60, ["trace_missed"]),
        ("20:25", "", 31, 60, 60, ["trace_missed"]),
        ("20:25", "4,5", 1, 60, 60, ["trace_missed"]),
        ("", "", 1, 60, 60, []),
    ],
)
def test_planned_and_missed_steps_are_recorded_once(
    tmp_path: Path, steps: str, ranks: str, first: int, last: int | None, done: int, expected: list[str]
) -> None:
    of_run = window(tmp_path, steps, ranks)
    of_run.announce(first, last)
    assert kinds(tmp_path) == expected[:1]
    of_run.finish(first, done, last)
    assert kinds(tmp_path) == expected
    assert all(steps in event["message"] for kind in expected for event in events(tmp_path, kind))


def test_other_ranks_record_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = window(tmp_path, "200:205", rank=3)
    other.announce(1, 60)
    other.finish(1, 60, 60)
    assert (kinds(tmp_path), capsys.readouterr().err) == ([], "")
