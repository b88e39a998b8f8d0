"""Watch a training script from outside: count its optimizer steps, beat, and trace the agreed steps.

torch calls a global hook after every step of every optimizer. The first optimizer that is seen does the counting (a GAN
has two), and the next one takes over if it goes away. torch is not imported for the script's sake: the hook is put in
place when the script imports `torch.optim` itself, so that what the script sets before (threads, devices) still holds.

Steps count from 1. The hook runs at the end of a step, so recording can start with step 2 at the earliest. On a GPU the
step may still have to run then: its metrics are written once it has ended there, by a later hook or at the end.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from muster_components.trainer.beats import Beat, Metrics, Phase, Reporter
from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import RunContext
from muster_components.trainer.device_clock import DeviceClock
from muster_components.trainer.trace_window import TraceWindow

if TYPE_CHECKING:
    from muster_components.trainer.profile import StepTracer, Switch

OPTIMIZER_MODULE: Final = "torch.optim.optimizer"
FIRST_TRACED: Final = 2
"""The first step that can be recorded: torch's hook runs at the end of a step."""


class Watcher:
    """Counts the optimizer steps of the script, beats, and traces the agreed ones."""

    def __init__(
        self, context: RunContext, trace: TraceConfig, reporter: Reporter, clock: DeviceClock | None = None
    ) -> None:
        self._context = context
        self._trace = trace
        self._reporter = reporter
        self._window = TraceWindow(trace, context, reporter)
        self._clock = clock or DeviceClock()
        self._counting: weakref.ref[object] | None = None
        self._tracer: StepTracer | None = None
        self._ended_at = time.perf_counter()
        self._step = 0
        self._step_time_s: float | None = None  # of the newest step that is known to have ended
        self._tracing_s: dict[Switch, float] = {}  # before the step that is under way

    def started(self) -> None:
        """The script is about to run."""
        self._window.announce(FIRST_TRACED)
        self._beat("setup")

    def optimizer_stepped(self, optimizer: object, *_arguments: Any) -> None:
        """torch's hook: an optimizer has made a step."""
        counting = None if self._counting is None else self._counting()
        if counting is None:
            self._counting = weakref.ref(optimizer)
        elif counting is not optimizer:
            return
        now = time.perf_counter()
        # The time to the first step is set-up and compilation, no step time.
        cpu_s = now - self._ended_at if self._step else None
        self._step += 1
        line = Metrics(
            step=self._step,
            step_time_s=cpu_s,
            trace_start_s=self._tracing_s.get("start"),
            trace_write_s=self._tracing_s.get("write"),
        )
        self._tell(self._clock.launched(optimizer, line))
        self._beat("train")
        self._tracing_s = self._trace_next()
        if self._tracing_s:
            self._clock.resume(optimizer)
        self._ended_at = time.perf_counter()

    def finished(self) -> None:
        """The script has ended, in whatever way."""
        self._tell(self._clock.last())
        if self._tracer is not None:
            self._tracer.close(self._step)
        self._window.ended(FIRST_TRACED, self._step)
        self._beat("done")

    def _tell(self, lines: Iterable[Metrics]) -> None:
        """Write the lines of steps that have ended."""
        for line in lines:
            self._step_time_s = line.step_time_s
            self._reporter.metrics(line)

    def _trace_next(self) -> dict[Switch, float]:
        """Have the tracer begin the next step; what that took where it started the profiler or wrote the trace."""
        if self._tracer is None:
            if not self._trace.covers(self._context.rank):
                return {}
            from muster_components.trainer.profile import StepTracer

            self._tracer = StepTracer(self._trace, self._context, self._reporter)
        if not self._tracer.pending:
            return {}
        switch, began_s = self._tracer.switches(self._step + 1), time.perf_counter()
        self._tracer.begin(self._step + 1)
        return {} if switch is None else {switch: time.perf_counter() - began_s}

    def _beat(self, phase: Phase) -> None:
        context = self._context
        self._reporter.beat(
            Beat(
                rank=context.rank,
                world_size=context.world_size,
                attempt=context.attempt,
                step=self._step,
                step_time_s=self._step_time_s,
                phase=phase,
            )
        )


class OptimizerImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Waits for `torch.optim.optimizer` to be imported, then registers the watcher's hook there."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Step between the import system and the one module of interest."""
        if fullname != OPTIMIZER_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        assert self._loader is not None
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load it, then hook it."""
        assert self._loader is not None
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # leave no trace
        sys.meta_path.remove(self)
        self._loader.exec_module(module)
        module.register_optimizer_step_post_hook(self._watcher.optimizer_stepped)


def watch_optimizers(watcher: Watcher) -> None:
    """Hook torch's optimizers now if they are loaded, else as soon as they are."""
    loaded = sys.modules.get(OPTIMIZER_MODULE)
    if loaded is not None:
        loaded.register_optimizer_step_post_hook(watcher.optimizer_stepped)
    else:
        sys.meta_path.insert(0, OptimizerImport(watcher))
