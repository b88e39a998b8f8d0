"""Traces: collect them next to the job, analyse them across ranks, report where the time went.

`collector` is the sidecar process. `report.build` turns a run folder, or any folder of torch.profiler traces, into a
`Report` and renders it, as a page with `page`. `runs` and `read` read files; the analysis between them does no I/O:
`work` and `account` say what each moment of a rank was, `ranks` who waited for whom, `verdicts` and `analysis` why.
Programs import the modules beside these packages. This one imports only types: the collector's memory stays small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

RECORDED_BY: Final = (
    "traces are recorded by Muster's trainer, and for scripts started with `python -m"
    " muster_components.trainer.instrument SCRIPT args...`"
)
HOW_TO_TRACE: Final = (
    "to trace a running job: muster trace JOB; from the start: muster submit --trace-steps 20:25"
    " (docs/concepts/tracing.md)"
)


def no_trace_reason(first_step: int, heartbeats: Sequence[Mapping[str, Any]]) -> str:
    """Why an ended job has no trace, although tracing was to begin with `first_step`; `heartbeats` are the last ones of
    its ranks (docs/reference/run-folder.md)."""
    steps = [step for heartbeat in heartbeats if isinstance(step := heartbeat.get("step"), int)]
    if not steps:
        return RECORDED_BY
    if max(steps) < first_step:
        return f"the run ended at step {max(steps)}, before step {first_step}, the first to be traced"
    return f"although step {max(steps)} was reached; its log or report may name the cause; {RECORDED_BY}"
