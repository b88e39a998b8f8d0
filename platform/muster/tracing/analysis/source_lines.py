"""The function and line in which a rank loses time, for traces with stacks (`with_stack`).

Stacks are most of such a trace, so they are read only of the rank that the first verdict names, in a second pass.
"""

from __future__ import annotations

import re
from pathlib import Path

from muster.errors import InvalidTrace
from muster.tracing.read.events import Trace
from muster.tracing.read.json_stream import TraceLimits
from muster.tracing.reader import read_trace
from muster.tracing.trace_details import Detail

COVERED = 0.8
"""The part of the lost time that a function has to be called in."""
_LIBRARY = re.compile(
    r"^(torch|torchvision|lightning|transformers|accelerate)/|site-packages|dist-packages|<frozen |/lib/python3"
)
_FUNCTION = re.compile(r".+\.py\(\d+\): .+")


def source_line(path: Path, span: tuple[int, int], limits: TraceLimits) -> str:
    """The innermost function of the program that is called during most of a span (nanoseconds since the origin of the
    trace), as `train.py(5): load`, else one of a library. Empty without stacks."""
    try:
        trace = read_trace(path, limits, {Detail.STACKS})
    except (InvalidTrace, OSError):
        return ""  # it was read without stacks
    return _innermost(trace, span)


def _innermost(trace: Trace, span: tuple[int, int]) -> str:
    calls = None if trace.details is None else trace.details.python_calls
    if calls is None or not len(calls.start):
        return ""
    start, end = span
    covered = calls.end.clip(max=end) - calls.start.clip(min=start)
    found = [
        (int(calls.start[i]), -int(calls.end[i]), trace.names[calls.name[i]])
        for i in (covered >= COVERED * (end - start)).nonzero()[0].tolist()
    ]
    functions = [name for _, _, name in sorted(found) if _FUNCTION.fullmatch(name)]
    own = [name for name in functions if not _LIBRARY.search(name)]
    return next(iter((own or functions)[::-1]), "")
