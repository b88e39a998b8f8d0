"""The report of a job: what its run folder and its traces say across ranks, as one value, one page, one JSON file.

    from muster.tracing.report import build, render_terminal
    report = build("runs/llama-8b")          # writes report/report.html and report/report.json there
    render_terminal(report, rich.console.Console())

Any folder of torch.profiler traces will do as well, or some traces; then the parts that need metrics are left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from muster.errors import InvalidTrace
from muster.tracing.html import render_page
from muster.tracing.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.publish import write_atomically
from muster.tracing.run_analysis import Report, analyse_run
from muster.tracing.run_folder import read_run_folder, read_selected_traces
from muster.tracing.terminal_report import render_report

__all__ = ["Report", "build", "json_path", "load", "render_terminal"]

_MAX_STEM_LENGTH = 60  # characters, which are at most four bytes each: of a file's name 255 bytes may be used


def build(
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    workers: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
) -> Report:
    """Analyse a run folder, any folder of traces, or some traces, and write a page and, beside it, the same as JSON.

    A folder's are report.html and report.json; those of one trace or several have names of their own, so that they
    leave the folder's alone. `out` is the folder for both (default: `report` in the folder, or beside the first trace);
    `name` the job's name where the folder does not tell it; `workers` how many processes read traces; with more than
    one, a script that calls this needs the `__main__` guard that multiprocessing asks for. A trace past the `limits` is
    left out and named.
    Raises InvalidTrace if there is nothing to report on, OSError if the report cannot be written.
    """
    paths = [Path(run)] if isinstance(run, str | os.PathLike) else [Path(path) for path in run]
    if not paths:
        raise InvalidTrace("no trace was named")
    first, of_traces = paths[0], len(paths) > 1 or paths[0].is_file()
    read = read_selected_traces(paths) if of_traces else read_run_folder(first)
    report = _utf8_safe(analyse_run(read, name=name, workers=workers, limits=limits))
    target = Path(out) if out is not None else (first.parent if of_traces else first) / "report"
    target.mkdir(parents=True, exist_ok=True)
    written = target / f"{_page_name(paths) if of_traces else 'report'}.html"
    report = replace(report, page=str(written))
    owner = f"report-{os.getpid()}"  # the daemon and a user may build the same one at the same time
    write_atomically(json_path(written), msgspec.json.encode(_utf8_safe(report)), owner=owner)
    write_atomically(written, render_page(report).encode(), owner=owner)
    return report


def _utf8_safe(report: Report) -> Report:
    """The same in text that can be written: names of files and of events may hold what UTF-8 cannot."""
    return msgspec.convert(_replace_invalid(msgspec.to_builtins(report)), Report)


def _replace_invalid(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
        case dict():
            return {_replace_invalid(key): _replace_invalid(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_invalid(item) for item in value]
        case _:
            return value


def _page_name(traces: Sequence[Path]) -> str:
    """Of the page of these traces: the same for the same ones, another for others."""
    first = traces[0].name.removesuffix(".gz").removesuffix(".json")
    if len(traces) == 1 and len(first) <= _MAX_STEM_LENGTH:
        return f"report-of-{first}"
    mark = hashlib.sha256("\0".join(sorted(str(path.absolute()) for path in traces)).encode()).hexdigest()[:8]
    return (
        f"report-of-{len(traces)}-traces-{mark}" if len(traces) > 1 else f"report-of-{first[:_MAX_STEM_LENGTH]}-{mark}"
    )


def json_path(page_path: str | os.PathLike[str]) -> Path:
    """The file beside a page that says the same as JSON. A page's name may have dots of its own."""
    path = Path(page_path)
    return path.with_name(path.name.removesuffix(".html") + ".json")


def load(page_path: str | os.PathLike[str]) -> Report:
    """The report whose page this is. Raises InvalidTrace if the JSON beside it is no report, OSError if it cannot be
    read."""
    path = json_path(page_path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{path}: is no report of this version: {error}") from error


def render_terminal(report: Report, console: Console) -> None:
    """Print the same facts, findings and pictures to a terminal."""
    render_report(report, console)
