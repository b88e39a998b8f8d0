"""Traces: collect them next to the job, analyse them across ranks, report where the time went.

`collector` is the sidecar process. `report.build` turns a run folder, or any folder of torch.profiler traces, into a
`Report` and renders it, as a page with `html_report`. The analysis between them (`spans`, `time_breakdown`,
`hta_breakdown`, ...) does no I/O. This module imports only `typing`, to keep the memory of the collector small.
"""

from __future__ import annotations

from typing import Final

RECORDED_BY: Final = (
    "traces are recorded by Muster's trainer, and for scripts started with `python -m"
    " muster_components.trainer.instrument SCRIPT args...`"
)
HOW_TO_TRACE: Final = (
    f"{RECORDED_BY}; set the steps with spec.trace, `muster submit --trace-steps 20:25`, the component argument"
    " --trace_steps 20:25 or -cfg trace_steps=20:25"
)
