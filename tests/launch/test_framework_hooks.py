"""What is reported of a framework's own trainer, with stand-ins for the frameworks."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from muster_components.trainer.framework_hooks import INTERVAL_S, FrameworkReports, install_framework_hooks
from muster_components.trainer.framework_stops import FrameworkStops, install_framework_stops
from muster_components.trainer.import_hook import when_imported


@pytest.fixture(autouse=True)
def import_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a test are gone after it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


def reported(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "at"} for line in lines]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_values_are_combined_and_written_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "reports.jsonl"
    reports = FrameworkReports(path, clock)
    reports.add(step=1, steps=None, loss=2.5)
    reports.add(step=2, loss=float("nan"))
    reports.add(step=3)
    assert reported(path) == [{"step": 1, "loss": 2.5}]
    clock.now += INTERVAL_S
    reports.add(step=4)
    reports.add(step=5)
    reports.flush()
    reports.flush()
    assert reported(path) == [{"step": 1, "loss": 2.5}, {"step": 4, "loss": None}, {"step": 5}]


class Engine:
    """As that of DeepSpeed."""

    global_steps = 40

    def backward(self, loss: float) -> float:
        return loss

    def step(self) -> None:
        self.global_steps += 1


def test_an_engines_steps_and_losses_are_reported_and_its_methods_do_what_they_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = Engine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Engine, "backward", Engine.backward)  # as they are, afterwards
    monkeypatch.setattr(Engine, "step", Engine.step)
    path = tmp_path / "reports.jsonl"
    reports = install_framework_hooks({"MUSTER_REPORT_FILE": str(path), "RANK": "0"})
    assert reports is not None
    engine = Engine()
    assert engine.backward(1.5) == 1.5
    engine.step()
    reports.flush()
    assert reported(path) == [{"loss": 1.5}, {"step": 41}]


class Trainer:
    """As that of Lightning."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.max_steps, self.global_step, self.estimated_stepping_batches = -1, 7, 60.0


def test_a_trainer_gets_a_callback_that_reports_its_global_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("lightning.pytorch.trainer.trainer")
    callbacks: Any = ModuleType("lightning.pytorch.callbacks")
    module.Trainer, callbacks.Callback = Trainer, SimpleNamespace
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, callbacks.__name__, callbacks)
    monkeypatch.setattr(Trainer, "__init__", Trainer.__init__)
    path = tmp_path / "reports.jsonl"
    assert install_framework_hooks({"MUSTER_REPORT_FILE": str(path)}) is not None
    trainer = Trainer()
    (callback,) = trainer.callbacks
    callback.on_train_batch_end(trainer, None, {"loss": 0.5}, None, 6)
    assert reported(path) == [{"step": 7, "steps": 60, "loss": 0.5}]


def test_other_ranks_and_programs_outside_a_job_report_nothing(tmp_path: Path) -> None:
    assert install_framework_hooks({"MUSTER_REPORT_FILE": str(tmp_path / "r"), "RANK": "1"}) is None
    assert install_framework_hooks({}) is None


@pytest.fixture
def sigterm() -> Iterator[None]:
    """The handler of a test is gone after it."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


class Deadline:
    """As muster.should_stop: handles SIGTERM from the first call on."""

    value: float | None = None
    calls = 0

    def __call__(self) -> float | None:
        if not self.calls:
            signal.signal(signal.SIGTERM, self.on_signal)
        self.calls += 1
        return self.value

    def on_signal(self, *_: object) -> None:
        self.value = 100.0


@pytest.mark.usefixtures("sigterm")
def test_sigterm_ends_a_rank_before_the_first_step_and_after_training_and_is_noted_in_between() -> None:
    deadline = Deadline()
    stops = FrameworkStops(deadline, lambda step: None)
    assert (stops.claim("lightning"), stops.claim("deepspeed"), stops.claim("lightning")) == (True, False, True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not stops.requested()
    signal.raise_signal(signal.SIGTERM)
    assert stops.requested()
    stops.release()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not stops.requested()


@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize("replaces", [False, True])
def test_a_script_that_handles_sigterm_itself_is_left_alone(replaces: bool) -> None:
    deadline = Deadline()

    def own(*_: object) -> None:
        """Of the script."""

    signal.signal(signal.SIGTERM, own)
    stops = FrameworkStops(deadline, lambda step: None)
    assert not stops.requested(lambda handler: replaces and handler is own)
    assert deadline.calls == replaces
    assert (signal.getsignal(signal.SIGTERM) is own) == (not replaces)


def test_several_hooks_of_a_module_that_is_not_imported_yet_are_all_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_once.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[str] = []
    for name in ("first", "second"):
        when_imported("hooked_once", lambda module, name=name: called.append(f"{name} {module.value}"))  # type: ignore[misc]
    importlib.import_module("hooked_once")
    assert called == ["first 1", "second 1"]


@pytest.mark.usefixtures("sigterm")
def test_an_engine_saves_where_the_script_does_before_the_next_forward_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[object, int]] = []

    class ResumedEngine(Engine):
        training = True

        def forward(self) -> None:
            """Nothing."""

        def load_checkpoint(self, folder: str) -> None:
            self.global_steps = 50

        def save_checkpoint(self, folder: str, tag: str | None = None, client_state: object = None) -> None:
            saved.append((folder, self.global_steps))

    module: Any = ModuleType("deepspeed.runtime.engine")
    module.DeepSpeedEngine = ResumedEngine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    deadline, resumed = Deadline(), list[int]()
    monkeypatch.setattr("muster.program.should_stop", deadline)
    install_framework_stops({"MUSTER_RUN_DIR": str(tmp_path)}, resumed.append)
    engine = ResumedEngine()
    engine.load_checkpoint("out")
    assert resumed == [50]
    for _ in range(2):
        engine.forward()
        engine.step()
    assert deadline.calls == 1
    deadline.value = 100.0
    with pytest.raises(SystemExit) as ended:
        engine.forward()
    assert (ended.value.code, saved) == (143, [("out", 52)])
