"""Stops that all ranks agree on, and steps over all attempts, of scripts that use Lightning, Transformers, Accelerate
or DeepSpeed, from outside the script.

SIGTERM reaches ranks at different steps. `muster.should_stop` makes one step the last of all; then the framework saves
a checkpoint where the script looks for it, and the rank ends with 143:

Lightning     its ModelCheckpoint's folder: `last.ckpt` with `save_last`, else a name with epoch and step
Transformers  `checkpoint-N` in its output folder
Accelerate    before the next batch, `save_state()`, if it names checkpoints itself (`automatic_checkpoint_naming`)
DeepSpeed     before the next forward, in the folder that the script has used, if it gives no `client_state`

A script that handles SIGTERM itself is left alone, and so is one of which it is not known where to save.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.errors import EXIT_STOPPED
from muster_components.trainer.import_hook import call_after, call_before, when_imported

_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")


class FrameworkStops:
    """Asks once per step, for the framework that was there first: others may be its parts."""

    def __init__(self, should_stop: Callable[[], float | None], set_step: Callable[[int], None]) -> None:
        """`set_step` gets the number of steps of earlier attempts, before the first step of this one."""
        self.set_step = set_step
        self._should_stop = should_stop
        self._framework = ""
        self._handler: Any = None  # of SIGTERM; None: not set yet
        self._is_off = threading.current_thread() is not threading.main_thread()

    def claim(self, framework: str) -> bool:
        """Whether this framework is the one that drives the training."""
        self._framework = self._framework or framework
        return self._framework == framework

    def requested(self, replaces: Callable[[Any], bool] = lambda _handler: False) -> bool:
        """Whether this step is the last one. Every rank calls it after the same steps. From the first call on SIGTERM
        does not end the rank, unless the script handles it with what is not to be replaced."""
        if self._is_off:
            return False
        if self._handler is None:
            current = signal.getsignal(signal.SIGTERM)
            self._is_off = current is not signal.SIG_DFL and not replaces(current)
            if self._is_off:
                return False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        deadline = self._should_stop()
        if self._handler is None:
            self._handler = signal.getsignal(signal.SIGTERM)
        return deadline is not None

    def release(self) -> None:
        """Training has ended: SIGTERM ends the rank again."""
        if self._handler is not None and signal.getsignal(signal.SIGTERM) == self._handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_off = True

    def exit(self) -> None:
        """End this rank, after its checkpoint."""
        raise SystemExit(EXIT_STOPPED)


def install_framework_stops(environ: Mapping[str, str], set_step: Callable[[int], None]) -> None:
    """From now on, on every rank of a job."""
    if not environ.get("MUSTER_RUN_DIR"):
        return
    try:  # by name: no package of `muster_components` needs `muster`
        should_stop = importlib.import_module("muster.program").should_stop
    except ImportError:
        return
    stops = FrameworkStops(should_stop, set_step)
    hooks: dict[str, Callable[[Any], None]] = {
        f"{package}.trainer.trainer": functools.partial(_hook_lightning, stops, package) for package in _LIGHTNING
    }
    hooks["transformers.trainer"] = functools.partial(_hook_transformers, stops)
    hooks["accelerate.accelerator"] = functools.partial(_hook_accelerate, stops)
    hooks["deepspeed.runtime.engine"] = functools.partial(_hook_deepspeed, stops)
    for name, hook in hooks.items():
        when_imported(name, functools.partial(_ignoring_errors, hook))


def _ignoring_errors(hook: Callable[[Any], None], module: Any) -> None:
    with contextlib.suppress(Exception):  # another version of the framework
        hook(module)


def _hook_lightning(stops: FrameworkStops, package: str, module: Any) -> None:
    """Give each Trainer one more callback, after those of the script."""
    steps_seen: list[int] = []

    def add_callback(trainer: Any, *_arguments: Any, **_named: Any) -> None:
        if stops.claim("lightning"):
            methods = {"on_train_start": on_start, "on_train_batch_end": on_batch_end, "on_train_end": on_end}
            trainer.callbacks.append(type("MusterStop", (sys.modules[f"{package}.callbacks"].Callback,), methods)())

    def on_start(_callback: Any, trainer: Any, _model: Any) -> None:
        steps_seen[:] = [trainer.global_step]
        stops.set_step(trainer.global_step // max(1, len(trainer.optimizers)))  # it counts the steps of each

    def on_batch_end(_callback: Any, trainer: Any, *_arguments: Any) -> None:
        if steps_seen == [trainer.global_step]:  # a batch of which gradients are accumulated
            return
        steps_seen[:] = [trainer.global_step]
        if stops.requested(_is_lightnings):
            saver = trainer.checkpoint_callback
            if saver is not None and saver.dirpath is not None:
                name = f"epoch={trainer.current_epoch}-step={trainer.global_step}"
                name = saver.CHECKPOINT_NAME_LAST if saver.save_last else name
                trainer.save_checkpoint(str(Path(saver.dirpath, f"{name}{saver.FILE_EXTENSION}")))
            stops.exit()

    def on_end(_callback: Any, _trainer: Any, _model: Any) -> None:
        stops.release()

    call_after(module.Trainer, "__init__", add_callback)


def _is_lightnings(handler: Any) -> bool:
    """Whether it is Lightning's own handler alone, which only makes all ranks raise at the end of a batch."""
    handlers = getattr(handler, "signal_handlers", None)
    return isinstance(handlers, list) and len(handlers) == 1


def _hook_transformers(stops: FrameworkStops, module: Any) -> None:
    """Give each Trainer one more callback."""
    callback = getattr(module, "TrainerCallback", None)
    if callback is None:  # another version
        return
    is_stopping: list[bool] = []

    def claim(_trainer: Any, *_arguments: Any, **_named: Any) -> None:
        stops.claim("transformers")

    def add_callback(trainer: Any, *_arguments: Any, **_named: Any) -> None:
        if stops.claim("transformers"):
            methods: dict[str, Any] = {
                "on_train_begin": on_begin,
                "on_step_end": on_step,
                "on_save": on_save,
                "on_train_end": on_end,
            }
            trainer.add_callback(type("MusterStop", (callback,), methods)())

    def on_begin(_callback: Any, _arguments: Any, state: Any, _control: Any, **_named: Any) -> None:
        stops.set_step(state.global_step)

    def on_step(_callback: Any, _arguments: Any, _state: Any, control: Any, **_named: Any) -> None:
        if stops.requested():
            is_stopping.append(True)
            control.should_save, control.should_evaluate = True, False

    def on_save(_callback: Any, *_arguments: Any, **_named: Any) -> None:
        if is_stopping:
            stops.exit()

    def on_end(_callback: Any, *_arguments: Any, **_named: Any) -> None:
        stops.release()

    # Before: it makes an Accelerator.
    call_before(module.Trainer, "__init__", claim)
    call_after(module.Trainer, "__init__", add_callback)


def _hook_accelerate(stops: FrameworkStops, module: Any) -> None:
    """Stop between two batches: then what the script does in a step is complete."""
    newest: list[weakref.ref[Any]] = []
    has_stepped: list[bool] = []

    def on_created(accelerator: Any, *_arguments: Any, **_named: Any) -> None:
        if stops.claim("accelerate"):
            newest[:] = [weakref.ref(accelerator)]

    def on_step(optimizer: Any, *_arguments: Any, **_named: Any) -> None:
        if optimizer.gradient_state.sync_gradients:
            has_stepped[:] = [True]

    def after_batch() -> None:
        accelerator = newest[0]() if newest and has_stepped else None
        has_stepped.clear()
        if accelerator is None or not accelerator.project_configuration.automatic_checkpoint_naming:
            return
        if stops.requested():
            accelerator.save_state()
            stops.exit()

    call_after(module.Accelerator, "__init__", on_created)
    call_after(sys.modules["accelerate.optimizer"].AcceleratedOptimizer, "step", on_step)
    for name in ("DataLoaderShard", "DataLoaderDispatcher"):
        _iterate_with(getattr(sys.modules["accelerate.data_loader"], name, None), after_batch)


def _iterate_with(owner: Any, after_batch: Callable[[], None]) -> None:
    iterate = getattr(owner, "__iter__", None)
    if iterate is None:  # another version
        return

    @functools.wraps(iterate)
    def batches(self: Any) -> Iterator[Any]:
        for batch in iterate(self):
            yield batch
            after_batch()

    owner.__iter__ = batches


def _hook_deepspeed(stops: FrameworkStops, module: Any) -> None:
    """Stop before the forward pass after a step: then what the script does in a step is complete."""
    folder: list[str] = []
    steps_seen: list[int] = []
    own_state: list[bool] = []

    def on_loaded(engine: Any, load_dir: Any, *_arguments: Any, **_named: Any) -> None:
        folder[:] = [str(load_dir)]
        if stops.claim("deepspeed"):
            stops.set_step(engine.global_steps)

    def on_saved(
        _engine: Any, save_dir: Any, tag: Any = None, client_state: Any = None, *_arguments: Any, **_named: Any
    ) -> None:
        folder[:] = [str(save_dir)]
        own_state[:] = [True] if client_state else []

    def before_forward(engine: Any, *_arguments: Any, **_named: Any) -> None:
        has_stepped = bool(steps_seen) and steps_seen != [engine.global_steps]
        steps_seen[:] = [engine.global_steps]
        if not (has_stepped and engine.training and folder and not own_state and stops.claim("deepspeed")):
            return
        if stops.requested():
            engine.save_checkpoint(folder[0])
            stops.exit()

    call_after(module.DeepSpeedEngine, "load_checkpoint", on_loaded)
    call_after(module.DeepSpeedEngine, "save_checkpoint", on_saved)
    call_before(module.DeepSpeedEngine, "forward", before_forward)
