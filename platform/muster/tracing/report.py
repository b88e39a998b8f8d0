"""Builds the report of a job from its run folder and traces: a `Report`, an HTML page and a JSON file.

    from muster.tracing.report import build, render_terminal
    report = build("runs/llama-8b")          # writes report/report.html and report/report.json there
    render_terminal(report, rich.console.Console())

It also accepts any folder of torch.profiler traces, or a list of traces; the report then has no metrics.
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
from muster.tracing.html_report import render_page
from muster.tracing.json_stream import DEFAULT_LIMITS, TraceLimits
from muster.tracing.run_analysis import Report, analyse_run
from muster.tracing.run_folder import read_run_folder, read_selected_traces
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.terminal_report import render_report

__all__ = ["Report", "build", "json_path", "load", "render_terminal"]

_MAX_STEM_LENGTH = 60  # characters of at most four bytes each; a file name may have 255 bytes


def build(
    run: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    workers: int = 1,
    limits: TraceLimits = DEFAULT_LIMITS,
) -> Report:
    """Analyse a run folder, any folder of traces, or a list of traces, and write an HTML page and a JSON file.

    The files of a folder are report.html and report.json; those of traces have other names. `out` is the folder for
    both (default: `report` in the folder, or next to the first trace); `name` is the job's name, for a folder that does
    not contain it; `workers` is the number of processes that read traces: with more than one, the calling script needs
    the `__main__` guard of multiprocessing. Traces that exceed `limits` are listed in `skipped`.
    Raises InvalidTrace if there is nothing to report, OSError if the report cannot be written.
    """
    paths = [Path(run)] if isinstance(run, str | os.PathLike) else [Path(path) for path in run]
    if not paths:
        raise InvalidTrace("must name a folder or at least one trace")
    first, of_traces = paths[0], len(paths) > 1 or paths[0].is_file()
    run_folder = read_selected_traces(paths) if of_traces else read_run_folder(first)
    report = _utf8_safe(analyse_run(run_folder, name=name, workers=workers, limits=limits))
    target = Path(out) if out is not None else (first.parent if of_traces else first) / "report"
    target.mkdir(parents=True, exist_ok=True)
    page = target / f"{_page_name(paths) if of_traces else 'report'}.html"
    report = replace(report, page=str(page))
    folder, owner = (
        SharedFolder(target),
        f"report-{os.getpid()}",
    )  # the daemon and a user may build the same report at the same time
    folder.write(json_path(page).name, msgspec.json.encode(_utf8_safe(report)), owner=owner)
    folder.write(page.name, render_page(report).encode(), owner=owner)
    return report


def _utf8_safe(report: Report) -> Report:
    """The report with lone surrogates replaced: file names and event names may contain text invalid in UTF-8."""
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
    """The file name of the page of these traces, without suffix: unique per set of traces."""
    first = traces[0].name.removesuffix(".gz").removesuffix(".json")
    if len(traces) == 1 and len(first) <= _MAX_STEM_LENGTH:
        return f"report-of-{first}"
    digest = hashlib.sha256("\0".join(sorted(str(path.absolute()) for path in traces)).encode()).hexdigest()[:8]
    stem = f"{len(traces)}-traces" if len(traces) > 1 else first[:_MAX_STEM_LENGTH]
    return f"report-of-{stem}-{digest}"


def json_path(page_path: str | os.PathLike[str]) -> Path:
    """The JSON file of a page. A page's name may contain dots."""
    path = Path(page_path)
    return path.with_name(path.name.removesuffix(".html") + ".json")


def load(page_path: str | os.PathLike[str]) -> Report:
    """Load the report of a page from its JSON file. Raises InvalidTrace if it is invalid, OSError if unreadable."""
    path = json_path(page_path)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidTrace(f"{path}: not a report of this version: {error}") from error


def render_terminal(report: Report, console: Console) -> None:
    """Print summary, findings and charts to a terminal."""
    render_report(report, console)
