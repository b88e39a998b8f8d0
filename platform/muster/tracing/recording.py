"""What a job needs so that traces of it are recorded, in words for whoever looks for them in vain."""

from __future__ import annotations

from typing import Final

RECORDED_BY: Final = (
    "traces are recorded by Muster's trainer, or beside a script that `python -m muster_components.trainer.instrument"
    " SCRIPT args...` starts"
)
HOW_TO_TRACE: Final = (
    f"{RECORDED_BY}, of the steps that spec.trace names, `muster submit --trace-steps 20:25`, the components'"
    " --trace_steps 20:25 or -cfg trace_steps=20:25"
)
