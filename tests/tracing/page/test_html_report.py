"""The HTML page of a report: self-contained, and without markup from names in traces and run folders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tracing.kineto import Event, kernel, launch, step, trace_text, training_steps, write_trace
from tests.tracing.run_folders import HOSTILE, Page, page_of, run_folder

from muster.tracing.report import Report, build
from muster.tracing.runs.trace_files import Manifest, TraceEntry, write_manifest
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.work.operator_stats import short_name


def test_the_page_has_no_scripts_or_external_resources_and_is_well_formed(tmp_path: Path) -> None:
    text = page_of(build(run_folder(tmp_path / "run")))
    page = Page(text)
    assert page.open == []
    assert page.loads == []
    assert {"script", "link", "iframe", "object"}.isdisjoint(page.tags)
    assert re.search(r"url\(|@import|https?://", text) is None
    assert "prefers-color-scheme: dark" in text


def test_a_process_without_a_process_group_has_no_backend(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    for rank in (0, 1):
        traced_by(folder, rank=rank, distributedInfo={"backend": "none", "rank": rank, "world_size": 2})
    assert build(folder).summary.backend is None


def traced_by(folder: Path, *events: Event, rank: int = 0, **header: object) -> None:
    """Replace the trace of a rank."""
    document = json.loads(trace_text([step(20, 0, 1000), *events], rank=rank, world_size=2)) | header
    (folder / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json").write_text(json.dumps(document))


def with_operator(folder: Path) -> str:
    traced_by(folder, Event(HOSTILE, 0, 500))
    return short_name(HOSTILE, 56)


def with_kernel(folder: Path) -> str:
    traced_by(folder, launch(1, 0), kernel(HOSTILE, 10, 50, launch=1))
    return short_name(HOSTILE, 56)


def with_collective(folder: Path) -> str:
    name = "gloo:" + HOSTILE.replace("(", "")
    for rank in (0, 1):
        traced_by(folder, Event(name, 600, 300, "user_annotation", thread=2), rank=rank)
    return name


def with_job(folder: Path) -> str:
    traced_by(folder, Event("aten::mm", 0, 500), muster={"job": HOSTILE})
    return HOSTILE


def with_backend(folder: Path) -> str:
    for rank in (0, 1):
        info = {"backend": HOSTILE, "rank": rank, "world_size": 2}
        traced_by(folder, Event("aten::mm", 0, 500), rank=rank, distributedInfo=info)
    return HOSTILE


def with_device(folder: Path) -> str:
    traced_by(folder, launch(1, 0), kernel("gemm", 10, 50, launch=1), deviceProperties=[{"name": HOSTILE}])
    return HOSTILE


def with_event_message(folder: Path) -> str:
    event = {"kind": "trace_failed", "message": HOSTILE, "attempt": 0, "step": 1}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    return HOSTILE


def with_reason_in_the_manifest(folder: Path) -> str:
    entry = TraceEntry("corrupt/x.json", 0, 0, 1, 2, 3, 3, "", "corrupt", HOSTILE, 1.0)
    write_manifest(SharedFolder(folder), Manifest("trainer", 0, (entry,)), owner="test")
    return HOSTILE


def with_skipped_file(folder: Path) -> str:
    name = f"rank-2.{HOSTILE.replace('/', '')}.json"
    (folder / "traces/spool/.tmp").mkdir()
    (folder / "traces/spool/.tmp" / name).write_text("x")
    return name


PLACES = (
    with_operator,
    with_kernel,
    with_collective,
    with_job,
    with_backend,
    with_device,
    with_event_message,
    with_reason_in_the_manifest,
    with_skipped_file,
)


@pytest.mark.parametrize("place", PLACES)
def test_an_untrusted_name_is_escaped_wherever_it_enters(tmp_path: Path, place: Callable[[Path], str]) -> None:
    folder = run_folder(tmp_path / "run")
    name = place(folder)
    assert name in escaped_text(build(folder))


def test_untrusted_names_of_folders_and_trace_files_are_escaped(tmp_path: Path) -> None:
    """A file name is the label of a trace without rank: in findings, bar chart, table and timeline."""
    name = HOSTILE.replace("/", "")
    for file in ("a", "b"):
        write_trace(tmp_path / name / f"{name}{file}.json", training_steps(), rank=None)
    shown = escaped_text(build(tmp_path / name))
    assert f"{tmp_path}/{name}" in shown
    assert shown.count(f"{name}a") >= 4


def escaped_text(report: Report) -> str:
    """The text of the page, which must have no elements and no attributes of a hostile name."""
    page = Page(page_of(report))
    assert page.loads == []
    assert {"script", "img"}.isdisjoint(page.tags)
    assert page.open == []
    return "".join(page.texts)
