"""Step, last step and loss of scripts that use Lightning, DeepSpeed or Accelerate, from outside the script.

Each is added when the framework is imported, and reports as `muster.report` does: a line in the rank's report file.

Lightning     a callback of its Trainer: `global_step`, the estimated last step, the loss of the batch
DeepSpeed     after `engine.step()`: `global_steps`, which a loaded checkpoint sets, the loss given to `backward`
Accelerate    after `accelerator.backward(loss)`: the loss; it counts no steps
Transformers  has a callback of its own: see `install_transformers_hook`
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.import_hook import call_after, when_imported
from muster_components.trainer.regular_files import append_line, encode_line
from muster_components.trainer.reports import report_file

INTERVAL_S: Final = 1.0
"""Between two lines: the loss of a GPU is read for each, which waits for the steps that were launched."""
_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")


class FrameworkReports:
    """The lines of this rank. Errors never reach the script."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._next_at = float("-inf")
        self._pending: dict[str, Any] = {}

    def add(self, **fields: Any) -> None:
        """Report these values, None for unknown ones, or combine them with the next ones."""
        self._pending.update({name: value for name, value in fields.items() if value is not None})
        if self._clock() >= self._next_at:
            self.flush()

    def flush(self) -> None:
        """Write what has not been written."""
        fields, self._pending = self._pending, {}
        if not fields:
            return
        now = self._clock()
        self._next_at = now + INTERVAL_S
        with contextlib.suppress(Exception):  # the loss is the script's object
            if "loss" in fields:
                fields["loss"] = _number(fields["loss"])
            append_line(self._path, encode_line({**fields, "at": now}))


def install_framework_hooks(environ: Mapping[str, str]) -> FrameworkReports | None:
    """Report from now on, on rank 0 in a job; returns what is to be flushed at the end."""
    path = report_file(environ)
    if path is None or environ.get("RANK", "0") != "0":
        return None
    reports = FrameworkReports(path)
    for package in _LIGHTNING:
        when_imported(f"{package}.trainer.trainer", functools.partial(_hook_lightning, reports, package))
    when_imported("deepspeed.runtime.engine", functools.partial(_hook_deepspeed, reports))
    when_imported("accelerate.accelerator", functools.partial(_hook_accelerate, reports))
    return reports


def _hook_lightning(reports: FrameworkReports, package: str, module: Any) -> None:
    """Give each Trainer one more callback."""

    def add_callback(trainer: Any, *_arguments: Any, **_named: Any) -> None:
        callback = sys.modules[f"{package}.callbacks"].Callback
        own = type("MusterProgress", (callback,), {"on_train_batch_end": on_train_batch_end})
        trainer.callbacks.insert(0, own())

    def on_train_batch_end(_callback: Any, trainer: Any, _model: Any, outputs: Any, *_arguments: Any) -> None:
        steps = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        reports.add(step=trainer.global_step, steps=_count(steps), loss=_detached(loss))

    call_after(module.Trainer, "__init__", add_callback)


def _hook_deepspeed(reports: FrameworkReports, module: Any) -> None:
    def on_backward(_engine: Any, loss: Any = None, *_arguments: Any, **_named: Any) -> None:
        reports.add(loss=_detached(loss))

    def on_step(engine: Any, *_arguments: Any, **_named: Any) -> None:
        reports.add(step=_count(getattr(engine, "global_steps", None)))

    call_after(module.DeepSpeedEngine, "backward", on_backward)
    call_after(module.DeepSpeedEngine, "step", on_step)


def _hook_accelerate(reports: FrameworkReports, module: Any) -> None:
    def on_backward(_accelerator: Any, loss: Any = None, *_arguments: Any, **_named: Any) -> None:
        if "transformers.trainer" not in sys.modules:  # which reports the mean loss that it logs
            reports.add(loss=_detached(loss))

    call_after(module.Accelerator, "backward", on_backward)


def _detached(loss: Any) -> Any:
    """A tensor would keep its graph."""
    detach = getattr(loss, "detach", None)
    return loss if detach is None else detach()


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _count(value: Any) -> int | None:
    """An integer; None for an unknown or infinite number."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None


def install_transformers_hook() -> None:
    """Add the callback with which transformers reports to Kubeflow, so that its Trainer reports by default.

    transformers 5.23 and newer have it, for `report_to` all or kubeflow; the default is none. It reports to the
    endpoint of `muster_components.launch.trainer_status`, or to that of a TrainJob.
    `DISABLE_KUBEFLOW_INTEGRATION=TRUE` turns it off.
    """
    when_imported("transformers.trainer", _add_callback)


def _add_callback(module: Any) -> None:
    callbacks = getattr(module, "get_reporting_integration_callbacks", None)
    if callbacks is None:  # another version, which has none to add
        return

    def with_kubeflow(report_to: Any) -> list[Any]:
        from transformers.integrations import integration_utils  # type: ignore[import-untyped, unused-ignore]

        found: list[Any] = callbacks(report_to)
        kubeflow = getattr(integration_utils, "KubeflowCallback", None)
        is_available = getattr(integration_utils, "is_kubeflow_available", lambda: False)
        return [*found, kubeflow] if kubeflow is not None and is_available() and kubeflow not in found else found

    module.get_reporting_integration_callbacks = with_kubeflow
