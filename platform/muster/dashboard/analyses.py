"""Analyses the traces of jobs for their pages: at most once for each capture, one at a time, in a process with limits.

Reading the traces of many ranks takes seconds to minutes and much memory, and traces are not trusted. The page shows
what is known so far, and never waits. Results are in a temporary folder, which is removed with the server; nothing is
written into run folders. A report that the daemon or `muster report` has built since the capture is used as it is.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from muster.tracing.report import Report
    from muster.tracing.runs.stored_captures import StoredCapture

MAX_RAW_BYTES = 1 << 30
"""Larger captures, unpacked, are left to `muster report`."""
MAX_ANALYSES = 16
"""Results that are kept."""
TIMEOUT_S = 300.0
MEMORY_BYTES = 8 << 30
_MAX_EXISTING_BYTES = 64 << 20
_MAX_RESULT_BYTES = 16 << 20
_LOW_PRIORITY = 10
_PAGE, _RESULT, _ERROR = "report.html", "result.json", "error.txt"


@dataclass(slots=True)
class TraceAnalysis:
    """`done` is set once there is a result, or an `error`. `finding` is the first sentence of the report; `heat_map`
    has the title, the SVG, the legend and the hint of the heat map by rank and step, empty without one."""

    folder: Path
    done: bool = False
    error: str = ""
    finding: str = ""
    heat_map: Mapping[str, Any] = field(default_factory=dict)
    ended_at: float = 0.0

    @property
    def page(self) -> Path:
        return self.folder / _PAGE


class TraceAnalyses:
    """Results by run folder and capture. Thread-safe. `close` ends the current one and removes all results."""

    def __init__(
        self, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES, max_analyses: int = MAX_ANALYSES
    ) -> None:
        self._timeout_s = timeout_s
        self._max_analyses = max_analyses
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by the thread whose analysis runs
        self._results: OrderedDict[tuple[object, ...], TraceAnalysis] = OrderedDict()
        self._folder: Path | None = None
        self._process: BaseProcess | None = None
        self._closed = False

    def get(self, run_dir: Path, job: str, capture: StoredCapture) -> TraceAnalysis:
        """What is known of a capture, whose analysis begins with the first call. Returns at once."""
        window = (capture.attempt, capture.start_step, capture.end_step)
        key = (run_dir, *window, tuple(capture.ranks), capture.collected_at)  # traces may be written again
        with self._lock:
            found = self._results.get(key)
            if found is None:
                if self._closed or sum(not one.done for one in self._results.values()) >= self._max_analyses:
                    return TraceAnalysis(Path())  # later
                if self._folder is None:
                    self._folder = Path(tempfile.mkdtemp(prefix="muster-dashboard-"))
                found = TraceAnalysis(Path(tempfile.mkdtemp(dir=self._folder)))
                self._results[key] = found
                threading.Thread(target=self._run, args=(found, run_dir, job, capture), daemon=True).start()
            self._results.move_to_end(key)
            ended = [one for one, result in self._results.items() if result.done]
            for old in ended[: max(0, len(self._results) - self._max_analyses)]:
                shutil.rmtree(self._results.pop(old).folder, ignore_errors=True)
            return found

    def close(self) -> None:
        """End the current analysis and remove the results."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
            folder, self._folder = self._folder, None
        with self._turn:  # the process has ended
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, result: TraceAnalysis, run_dir: Path, job: str, capture: StoredCapture) -> None:
        with self._turn:
            try:
                error = self._analyse(result, run_dir, job, capture)
            except Exception as raised:  # of any kind: a result that is never done would occupy a place for ever
                error = f"the traces could not be analysed: {raised}"
            result.error, result.ended_at, result.done = error, time.time(), True

    def _analyse(self, result: TraceAnalysis, run_dir: Path, job: str, capture: StoredCapture) -> str:
        """Fill in the result; what went wrong, or empty."""
        process = get_context("spawn").Process(
            target=analyse, args=(run_dir, job, capture, result.folder, self._memory_bytes), daemon=True
        )
        with self._lock:
            if self._closed:
                return "the dashboard ends"
            process.start()
            self._process = process
        process.join(self._timeout_s)
        if is_late := process.is_alive():
            process.kill()
            process.join()
        with self._lock:
            self._process = None
        if is_late:
            return f"the analysis was stopped after {self._timeout_s:g} s"
        if process.exitcode:
            with suppress(FileNotFoundError):
                return (result.folder / _ERROR).read_text()
            return f"the process that analysed the traces ended with exit code {process.exitcode}"
        with open(result.folder / _RESULT, "rb") as file:
            found = json.loads(file.read(_MAX_RESULT_BYTES))
        result.finding, result.heat_map = found["finding"], found["heat_map"]
        return ""


def analyse(run_dir: Path, job: str, capture: StoredCapture, out: Path, memory_bytes: int) -> None:
    """The process of an analysis: writes the report and what the job's page shows of it."""
    try:
        _limit_this_process(memory_bytes)
        _write_result(run_dir, job, capture, out)
    except MemoryError:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # to say so needs some, too
        (out / _ERROR).write_text(f"the analysis needs more than {memory_bytes >> 20} MiB of memory")
        sys.exit(1)
    except Exception as error:  # of any kind: the traces are not trusted
        (out / _ERROR).write_text(f"the traces could not be analysed: {error}"[:2000], errors="replace")
        sys.exit(1)


def _limit_this_process(memory_bytes: int) -> None:
    """Our own modules are imported before: without memory an import fails in many ways, not only by a MemoryError."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads of numpy would reserve memory
    os.nice(_LOW_PRIORITY)
    import muster.tracing.page.html_report
    import muster.tracing.page.rank_sections
    import muster.tracing.report  # noqa: F401
    from muster.tracing.analysis.trace_summary import exit_with_parent

    exit_with_parent()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    own = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (own, hard))


def _write_result(run_dir: Path, job: str, capture: StoredCapture, out: Path) -> None:
    from muster.tracing.page.html_report import render_page
    from muster.tracing.page.rank_sections import step_time_heat_maps
    from muster.tracing.report import build

    report = _existing_report(run_dir, capture)
    if report is None:
        report = build(run_dir, out, name=job)
    else:
        (out / _PAGE).write_text(render_page(report), encoding="utf-8")
    section = next(iter(step_time_heat_maps(report)), None)
    heat_map = {} if section is None else {
        "title": section.title, "chart": section.chart, "legend": section.legend, "hint": section.hint,
    }  # fmt: skip
    result = {"finding": report.headline, "heat_map": heat_map}
    (out / _RESULT).write_text(json.dumps(result))


def _existing_report(run_dir: Path, capture: StoredCapture) -> Report | None:
    """The report in the run folder, if it is of this capture and was built after its newest trace was stored."""
    from muster.errors import InvalidTrace
    from muster.tracing.report import json_path, load
    from muster.tracing.shared_folder import SharedFolder

    name = f"report/{_PAGE}"
    with suppress(OSError, InvalidTrace):
        status = SharedFolder(run_dir).stat(str(json_path(name)))
        if status.st_mtime >= capture.collected_at and status.st_size <= _MAX_EXISTING_BYTES:
            report = load(run_dir / name)
            return report if report.traced_steps == (capture.start_step, capture.end_step) else None
    return None
