"""Hints for messages about missing traces: how to record them."""

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
