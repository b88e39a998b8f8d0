"""The line and the module in which a rank loses time, for traces with stacks (`with_stack`).

Stacks are most of such a trace, so they are read only of the rank that the first verdict names, in a second pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster.errors import InvalidTrace
from muster.tracing.read.events import DEVICE_WORK, Trace, build_call_tree
from muster.tracing.read.json_stream import TraceLimits
from muster.tracing.read.spans import Int64, Spans
from muster.tracing.reader import read_trace
from muster.tracing.trace_details import Detail, PythonCalls
from muster.tracing.work.hta_breakdown import launch_times

COVERED = 0.8
"""The part of the lost time that a function has to be called in."""
MOST = 0.5
"""The part of an operator's calls that a module has to make."""
MAX_LEVELS = 3
"""Of modules within each other, the innermost ones, that are named."""
_LIBRARY = re.compile(
    r"^(torch\w*|lightning\w*|pytorch_lightning|transformers|accelerate|datasets|PIL|numpy|pandas|cv2|multiprocessing|"
    r"contextlib|threading)(/|\.py)|site-packages|dist-packages|<frozen |/lib/python3"
)
_FUNCTION = re.compile(r".+\.py\(\d+\): .+")
_MODULE = "nn.Module: "


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """`line` is a function such as `train.py(5): load`, `module` a module within others such as `Block_3 > MLP_3`, as
    the profiler numbers them; empty where none is known."""

    line: str = ""
    module: str = ""


def source_place(path: Path, span: tuple[int, int], work: str, limits: TraceLimits) -> SourcePlace:
    """Where the program is during most of a span (nanoseconds since the origin of the trace), and in which module: that
    of the span, or without one the module that calls most of `work`, an operator or a kernel. Nothing without stacks.
    """
    try:
        trace = read_trace(path, limits, {Detail.STACKS})
    except (InvalidTrace, OSError):
        return SourcePlace()  # it was read without stacks
    calls = None if trace.details is None else trace.details.python_calls
    if calls is None or not len(calls.start):
        return SourcePlace()
    start, end = span
    covered = calls.end.clip(max=end) - calls.start.clip(min=start)
    around = np.flatnonzero(covered >= COVERED * (end - start))
    around = around[np.lexsort((-calls.end[around], calls.start[around]))]
    modules = [name for i in around.tolist() if (name := trace.names[calls.name[i]]).startswith(_MODULE)]
    module = _path(modules) if modules else _module_of(trace, calls, work)
    return SourcePlace(_function(trace, calls, np.maximum(covered, 0), end - start), module)


def _function(trace: Trace, calls: PythonCalls, covered: Int64, span_ns: int) -> str:
    """The function whose calls together cover most of a span, of several the one whose calls are shortest: it is called
    by the others, such as the `__getitem__` of a data set for each sample. One of the program if there is any."""
    inside = covered > 0
    number, total = np.bincount(calls.name[inside]), np.bincount(calls.name[inside], weights=covered[inside])
    named = [(total[code] / number[code], trace.names[code]) for code in np.flatnonzero(total >= COVERED * span_ns)]
    functions = sorted(one for one in named if _FUNCTION.fullmatch(one[1]))
    own = [one for one in functions if not _LIBRARY.search(one[1])]
    return next((name for _, name in own or functions), "")


def _path(modules: list[str]) -> str:
    return " > ".join(name.removeprefix(_MODULE) for name in modules[-MAX_LEVELS:])


def _module_of(trace: Trace, calls: PythonCalls, work: str) -> str:
    """The module in whose forward pass most calls of an operator are made, or most launches of a kernel."""
    is_module = np.array([name.startswith(_MODULE) for name in trace.names], dtype=bool)[calls.name]
    rows = np.flatnonzero(is_module)
    if work not in trace.names or not len(rows):
        return ""
    events = trace.events[trace.events.name == trace.names.index(work)]
    on_device = np.isin(events.kind, DEVICE_WORK)
    times = np.where(on_device, launch_times(trace, events), events.start)
    rows = rows[calls.thread[rows] == np.bincount(calls.thread[rows]).argmax()]
    tree = build_call_tree(Spans(calls.start[rows], calls.end[rows]))
    at = np.searchsorted(tree.segments.start, times, side="right") - 1
    innermost = np.where(at >= 0, tree.innermost[np.maximum(at, 0)], -1)
    path: list[str] = []
    called: Int64 = np.where(innermost >= 0, calls.name[rows][tree.order][np.maximum(innermost, 0)], -1)
    values, counts = np.unique(called, return_counts=True)
    if not len(values) or values[counts.argmax()] < 0 or counts.max() < MOST * len(times):
        return ""
    node = int(innermost[np.flatnonzero(called == values[counts.argmax()])[0]])
    while node >= 0:
        path.insert(0, trace.names[calls.name[rows][tree.order][node]])
        node = int(tree.parent[node])
    return _path(path)
