"""For any content of a run folder or a trace, `build` gives a report or raises InvalidTrace or OSError."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.tracing.kineto import Event, trace_text, training_steps
from tests.tracing.run_folders import run_folder

from muster.errors import InvalidTrace
from muster.tracing.analysis import trace_summary as analysis
from muster.tracing.report import Report, build, load, render_terminal
from muster.tracing.runs.run_folder import read_run_folder

SPOOLED = "traces/spool/rank-0.attempt-0.steps-20-23.json"


def lines(**values: Any) -> str:
    """Metrics of 30 steps, all with these values."""
    defaults = {"attempt": 0, "step_time_s": 0.1, "loss": 1.0}
    return "".join(json.dumps({"step": step, **defaults, **values}) + "\n" for step in range(1, 31))


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def shown(report: Report) -> str:
    """The terminal output of the written report."""
    assert report.page is not None
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    render_terminal(load(report.page), Console(file=out, width=100))
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode()


@pytest.mark.parametrize(
    "values",
    [
        {"step": 2**63},
        {"step": 10**30},
        {"attempt": 2**63},
        {"attempt": -1},
        {"loss": 10**400},
        {"loss": "x"},
        {"step": None},
        {"step_time_s": None},
    ],
)
def test_invalid_lines_of_metrics_are_listed_and_the_others_used(tmp_path: Path, values: dict[str, Any]) -> None:
    record = {"step": 99, **values}
    report = build(written(tmp_path, {"metrics/rank-0.jsonl": lines() + json.dumps(record) + "\n"}))
    assert report.summary.last_loss == 1.0
    assert [s.file for s in report.skipped] == ([] if values == {"step_time_s": None} else ["metrics/rank-0.jsonl"])


@pytest.mark.parametrize("value", [1.7e308, 5e-324, -3.0, 0.0, 1e300])
def test_any_metric_value_gives_a_page(tmp_path: Path, value: float) -> None:
    record = {"loss": value, "step_time_s": value, "tokens_per_s": value, "mfu": value, "trace_write_s": value}
    text = lines(**record) + lines(loss=-value, attempt=1).splitlines()[0]
    assert "30 steps" in shown(build(written(tmp_path, {"metrics/rank-0.jsonl": text})))


def traced(name: str) -> bytes:
    return trace_text([*training_steps(), Event(name, 10, 20)])


@pytest.mark.parametrize("name", ["ProfilerStep#" + "9" * 5000, "ProfilerStep#" + "9" * 30, "a\ud800b", "\udcff"])
def test_any_event_name_gives_a_page(tmp_path: Path, name: str) -> None:
    report = build(written(tmp_path, {SPOOLED: traced(name)}))
    assert [step.step for step in report.traces[0].trace.steps] == [20, 21, 22]
    assert "rank 0" in shown(report)


def test_a_folder_with_a_name_that_is_not_utf_8_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    report = build(written(folder, {"metrics/rank-0.jsonl": lines()}))
    assert report.page == str(folder / "report" / "report.html")
    assert "30 steps" in shown(report)


def test_a_link_or_a_file_in_place_of_the_traces_folder_is_named_and_the_rest_shown(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    (run / "traces").rename(tmp_path / "elsewhere")
    (run / "traces").symlink_to(tmp_path / "elsewhere")
    report = build(run)
    assert len(report.traces) == 2
    assert [(one.file, one.reason) for one in report.skipped] == [
        ("traces", "manifests cannot be read: Not a directory")
    ]
    (run / "traces").unlink()
    (run / "traces").write_text("")
    assert [one.file for one in build(run).skipped] == ["traces"]


UNREPORTABLE: dict[str, dict[str, str | bytes]] = {
    "an empty folder": {},
    "metrics without a line": {"metrics/rank-0.jsonl": ""},
    "metrics that are not JSON": {"metrics/rank-0.jsonl": b"garbage\n\xff\n"},
    "no ranks": {"metrics/readme.txt": "", "events.jsonl": ""},
    "only heartbeats": {"heartbeats/rank-0.json": '{"rank": 0, "step": 3}'},
    "a trace without events": {SPOOLED: '{"traceEvents": []}'},
    "a truncated trace": {SPOOLED: traced("aten::mm")[:200]},
    "a manifest that is not JSON": {"traces/manifest-trainer-0.json": "{"},
}


@pytest.mark.parametrize("files", UNREPORTABLE.values(), ids=UNREPORTABLE.keys())
def test_without_metrics_and_traces_the_error_is_one_line(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    with pytest.raises(InvalidTrace, match="nothing to report") as raised:
        build(written(tmp_path, files))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "report").exists()


def test_a_killed_reader_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files: dict[str, str | bytes] = {SPOOLED.replace("rank-0", f"rank-{rank}"): traced("aten::mm") for rank in (0, 1)}
    monkeypatch.setattr(analysis, "summarise_trace_file", killed)
    with pytest.raises(InvalidTrace, match="killed"):
        build(written(tmp_path, files), workers=2)


def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "name", ["metrics/rank-1.jsonl", "heartbeats/rank-1.json", "events.jsonl", "traces/manifest-worker-0.json"]
)
def test_a_fifo_in_a_run_folder_is_skipped(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    for folder in ("metrics", "heartbeats", "traces"):
        (run / folder).mkdir(parents=True)
    os.mkfifo(run / name)
    skipped = read_run_folder(run).skipped
    assert [entry.file.rpartition("/")[2] for entry in skipped] == [Path(name).name]
    assert "must be a regular file" in skipped[0].reason
