"""Traces on request of programs that have no optimizer, such as evaluation and inference: by time.

While no optimizer exists, a thread counts seconds from the import of torch on. Each is a step for requests
(`capture`): the heartbeat has their number as `time_slice`, and the profiler records all threads. The first optimizer
that is made ends this for good.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from muster_components.trainer.import_hook import call_after

if TYPE_CHECKING:
    from muster_components.trainer.profile import StepTracer

SLICE_S: Final = 1.0
_WRITE_LIMIT_S: Final = 60.0
"""How long a script waits for the trace that is being written."""
QUIET_SLICES: Final = 5
"""After the import of torch, before slices are reported: most programs that train have an optimizer by then."""


class TimeSlices:
    """Counts from `start` to `stop`."""

    def __init__(self, create_tracer: Callable[[], StepTracer], report: Callable[[int], None]) -> None:
        """`create_tracer` is called once torch is imported, in this thread; `report` writes a heartbeat with the number
        of slices that have ended."""
        self._create_tracer = create_tracer
        self._report = report
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-time-slices", daemon=True)

    def start(self) -> None:
        """Count from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write a trace that is being recorded. Called again and before `start`, it does nothing."""
        if not self._stopping.is_set():
            self._stopping.set()
            if self._thread.is_alive():
                self._thread.join(_WRITE_LIMIT_S)

    def watch_optimizers(self, module: Any) -> None:
        """`module`: that of torch's optimizers, which has been imported."""
        call_after(module.Optimizer, "__init__", lambda *_arguments, **_named: self.stop())

    def _run(self) -> None:
        quiet = QUIET_SLICES
        while quiet:
            if self._stopping.wait(SLICE_S):
                return
            if "torch.profiler" in sys.modules:  # which torch imports last
                quiet -= 1
        tracer, number = self._create_tracer(), 0
        while not self._stopping.is_set():
            number += 1
            tracer.next_transition(number)
            tracer.begin_step(number)
            self._stopping.wait(SLICE_S)
            self._report(number)
        tracer.close(number)
