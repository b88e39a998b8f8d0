"""The report of a job: what its run folder and its traces say across ranks, as one value, one page, one JSON file.

    from muster.tracing.report import build, render_terminal
    report = build("runs/llama-8b")          # writes report/report.html and report/report.json there
    render_terminal(report, rich.console.Console())

Any folder of torch.profiler traces will do as well; then the parts that need metrics are left out.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
from rich.console import Console

from muster.errors import InvalidTrace
from muster.tracing.html import page
from muster.tracing.job import Report, analyse
from muster.tracing.publish import write_atomically
from muster.tracing.runfolder import read_run_folder
from muster.tracing.terminal import render

__all__ = ["Report", "build", "load", "render_terminal"]


def build(
    run_dir: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    workers: int = 1,
) -> Report:
    """Analyse a run folder, or any folder of traces or a single one, and write report.html and report.json.

    `out` is the folder for both (default: `report` inside); `name` the job's name where the folder does not tell it;
    `workers` how many processes read traces; with more than one, a script that calls this needs the `__main__` guard
    that multiprocessing asks for.
    Raises InvalidTrace if there is nothing to report on, OSError if the report cannot be written.
    """
    folder = Path(run_dir)
    report = analyse(read_run_folder(folder), name=name, workers=workers)
    target = Path(out) if out is not None else (folder.parent if folder.is_file() else folder) / "report"
    target.mkdir(parents=True, exist_ok=True)
    report = replace(report, page=str(target / "report.html"))
    owner = f"report-{os.getpid()}"  # the daemon and a user may build the same one at the same time
    write_atomically(target / "report.json", msgspec.json.encode(report), owner=owner)
    write_atomically(target / "report.html", page(report).encode(), owner=owner)
    return report


def load(page_path: str | os.PathLike[str]) -> Report:
    """The report whose page this is. Raises InvalidTrace if its report.json is none, OSError if it cannot be read."""
    path = Path(page_path).with_name("report.json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.MsgspecError as error:
        raise InvalidTrace(f"{path}: is no report of this version: {error}") from error


def render_terminal(report: Report, console: Console) -> None:
    """Print the same facts, findings and pictures to a terminal."""
    render(report, console)
