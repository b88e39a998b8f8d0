"""Loss and step time of rank 0 over steps, from the metrics in a run folder, in a bounded number of points.

The collector reads them for the operator's read API, the daemon for its own: ranks write the file meanwhile.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

from muster.heartbeats.parse import StepPoint, finite_number
from muster.tracing.shared_folder import SharedFolder

MAX_POINTS = 300
MAX_TAIL_BYTES = 8 << 20
"""Of a larger file, the steps within its last bytes."""
_FILE = "metrics/rank-0.jsonl"


class _Line(msgspec.Struct):
    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    loss: float | None = None
    step_time_s: float | None = None
    attempt: int = 0


def read_step_curve(run_folder: SharedFolder) -> list[StepPoint]:
    """At most `MAX_POINTS` evenly chosen steps in order, the newest included; from the step where the newest
    attempt began, only those of that attempt. Empty without metrics. Raises OSError for a file that cannot be read."""
    decoder = msgspec.json.Decoder(_Line)
    by_step: dict[int, StepPoint] = {}
    attempt = 0
    try:
        file = run_folder.open(_FILE)
    except FileNotFoundError:
        return []
    with file:
        if (size := os.fstat(file.fileno()).st_size) > MAX_TAIL_BYTES:
            file.seek(size - MAX_TAIL_BYTES)
            file.readline(MAX_TAIL_BYTES)
        remaining = MAX_TAIL_BYTES
        while remaining > 0 and (line := file.readline(remaining)):
            remaining -= len(line)
            try:
                found = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue  # such as the last line, while it is being written
            if found.attempt < attempt:
                continue
            if found.attempt > attempt:  # it continues from a checkpoint: what was done after that is repeated
                attempt = found.attempt
                by_step = {step: point for step, point in by_step.items() if step < found.step}
            by_step[found.step] = (found.step, finite_number(found.loss), finite_number(found.step_time_s))
    ordered = [by_step[step] for step in sorted(by_step)]
    every = -(-len(ordered) // MAX_POINTS) or 1
    return ordered[::-1][::every][::-1]
