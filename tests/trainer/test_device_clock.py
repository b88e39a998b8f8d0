"""Metrics of a script that launches steps ahead of its GPU: in order, with the GPU's times; errors do not stop it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from muster_components.trainer.config import TraceConfig
from muster_components.trainer.context import run_context
from muster_components.trainer.device_clock import DRAIN_TIMEOUT_S, MAX_PENDING_STEPS, DeviceClock, record_gpu_event
from muster_components.trainer.optimizer_hook import OptimizerWatcher
from muster_components.trainer.reporter import Reporter, StepMetrics

from .conftest import metrics

CPU_S, GPU_S = 0.002, 0.016


@dataclass
class Gpu:
    """Executes launched work: `now_s` is its time, `busy_until_s` the time when all launched work has ended."""

    now_s: float = 0.0
    busy_until_s: float = 0.0
    fails: str = ""
    waited: int = 0
    requested: int = 0

    def launch(self, seconds: float = GPU_S) -> None:
        self.busy_until_s = max(self.busy_until_s, self.now_s) + seconds

    def catch_up(self) -> None:
        self.now_s = max(self.now_s, self.busy_until_s)

    def event(self, _optimizer: object = None) -> Moment:
        self.check("record")
        return Moment(self, max(self.busy_until_s, self.now_s))

    def check(self, act: str) -> None:
        if self.fails == act:
            raise RuntimeError(f"CUDA error: {act}")


@dataclass(frozen=True)
class Moment:
    gpu: Gpu
    at_s: float

    def query(self) -> bool:
        self.gpu.check("query")
        self.gpu.requested += 1
        return self.at_s <= self.gpu.now_s + 1e-9

    def synchronize(self) -> None:
        self.gpu.check("synchronize")
        self.gpu.waited += 1
        self.gpu.now_s = max(self.gpu.now_s, self.at_s)

    def elapsed_time(self, end_event: Moment, /) -> float:
        self.gpu.check("elapsed_time")
        assert self.query()
        assert end_event.query()
        return (end_event.at_s - self.at_s) * 1000


@dataclass
class Script:
    """Launches steps on a GPU under a clock; each takes the CPU 2 ms and the GPU 16."""

    gpu: Gpu = field(default_factory=Gpu)
    pid: int = 1
    step: int = 0
    waited_s: float = 0.0

    def __post_init__(self) -> None:
        self.clock = DeviceClock(self.gpu.event, lambda: self.pid, self.pause, lambda: self.waited_s)

    def launch(self, steps: int = 1) -> list[tuple[int, float | None]]:
        lines = []
        for _ in range(steps):
            self.step += 1
            self.gpu.launch()
            cpu_s = CPU_S if self.step > 1 else None
            lines += self.clock.step_launched(object(), StepMetrics(step=self.step, step_time_s=cpu_s))
        return shown(lines)

    def pause(self) -> None:
        self.waited_s += 0.5
        self.gpu.now_s += 0.5

    def last(self) -> list[tuple[int, float | None]]:
        return shown(self.clock.drain())


def shown(lines: list[StepMetrics]) -> list[tuple[int, float | None]]:
    return [(line.step, line.step_time_s and round(line.step_time_s, 6)) for line in lines]


def test_a_step_is_returned_when_it_has_ended_on_the_gpu_with_its_gpu_time() -> None:
    script = Script()
    assert script.launch(4) == []
    script.gpu.now_s = 2.5 * GPU_S
    assert script.launch() == [(1, None), (2, GPU_S)]
    script.gpu.now_s = 10 * GPU_S
    assert script.launch() == [(3, GPU_S), (4, GPU_S), (5, GPU_S)]
    assert script.gpu.waited == 0
    assert script.last() == [(6, 6 * GPU_S)]  # the GPU had nothing to do for five
    assert script.gpu.waited == 0


def test_without_cuda_steps_are_returned_at_once_with_the_cpu_time() -> None:
    clock = DeviceClock(lambda _: None)
    for step in (1, 2, 3):
        assert shown(clock.step_launched(object(), StepMetrics(step=step, step_time_s=CPU_S))) == [(step, CPU_S)]
        clock.restart_step(object())
    assert clock.drain() == []


def test_the_first_step_with_cuda_has_the_cpu_time() -> None:
    script, events = Script(), iter([None])
    script.clock = DeviceClock(lambda _: next(events, script.gpu.event()))
    assert script.launch() == [(1, None)]
    script.launch(2)
    script.gpu.now_s = 1.0
    assert script.last() == [(2, CPU_S), (3, GPU_S)]


def test_tracing_between_two_steps_counts_for_neither() -> None:
    script = Script()
    script.launch(2)
    script.gpu.now_s = 0.5  # a trace was started meanwhile
    script.clock.restart_step(object())
    assert script.launch(2) == [(1, None), (2, GPU_S)]
    script.gpu.now_s = 1.0
    assert script.last() == [(3, GPU_S), (4, GPU_S)]


@pytest.mark.parametrize("fails", ["record", "query", "elapsed_time"])
def test_after_a_cuda_error_cpu_times_are_used_for_the_rest_of_the_run(fails: str) -> None:
    script = Script()
    script.launch(3)
    script.gpu.now_s, script.gpu.fails = 2.5 * GPU_S, fails
    cpu_s = [(step, CPU_S) for step in range(2, 5)]
    assert script.launch() == [(1, None), *cpu_s]
    script.gpu.fails, requested = "", script.gpu.requested
    assert script.launch(2) == [(5, CPU_S), (6, CPU_S)]
    assert script.last() == []
    assert script.gpu.requested == requested


def test_an_error_while_tracing_loses_no_step() -> None:
    script = Script()
    script.launch(2)
    script.gpu.fails = "record"
    script.clock.restart_step(object())
    assert script.launch() == [(1, None), (2, CPU_S), (3, CPU_S)]


def test_after_an_error_at_the_end_cpu_times_are_used() -> None:
    script = Script()
    script.launch(3)
    script.gpu.fails = "query"
    assert script.last() == [(1, None), (2, CPU_S), (3, CPU_S)]


def test_at_the_maximum_of_pending_steps_only_the_oldest_is_waited_for() -> None:
    script = Script()
    assert script.launch(MAX_PENDING_STEPS) == []
    assert script.gpu.waited == 0
    assert script.launch() == [(1, None)]
    assert script.launch() == [(2, GPU_S)]
    assert script.gpu.now_s == pytest.approx(2 * GPU_S)


def test_the_last_steps_are_waited_for_until_a_timeout() -> None:
    script = Script()
    script.launch()
    script.gpu.launch(2.0)
    script.launch()
    script.gpu.launch(float("inf"))  # a collective that the other ranks have left
    script.launch()
    assert script.last() == [(1, None), (2, 2.0 + GPU_S), (3, CPU_S)]
    assert script.waited_s == DRAIN_TIMEOUT_S


def test_a_forked_child_returns_only_its_own_steps_and_does_not_use_cuda() -> None:
    script = Script()
    script.launch(2)
    requested, script.pid = script.gpu.requested, 2
    assert script.launch() == [(3, CPU_S)]
    assert script.last() == []
    assert script.gpu.requested == requested


def test_no_event_is_recorded_without_cuda() -> None:
    import torch

    before = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    weight = torch.nn.Parameter(torch.ones(1))
    assert record_gpu_event(torch.optim.SGD([weight], lr=0.1)) is None
    assert torch.cuda.is_initialized() == before  # type: ignore[no-untyped-call]


class Optimizer:
    """An optimizer whose steps can be counted."""


def test_all_steps_of_a_script_on_a_gpu_are_written_in_order(tmp_path: Path) -> None:
    context, gpu, optimizer = run_context({}, output=str(tmp_path)), Gpu(), Optimizer()
    clock = DeviceClock(gpu.event, sleep=gpu.catch_up)
    reporter = Reporter(context)
    watcher = OptimizerWatcher(context, TraceConfig(), reporter, clock)
    watcher.on_start()
    for _ in range(10):
        gpu.launch()
        watcher.on_optimizer_step(optimizer)
    reporter.flush()
    assert metrics(tmp_path) == []
    gpu.now_s = 5 * GPU_S
    gpu.launch()
    watcher.on_optimizer_step(optimizer)
    reporter.flush()
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 3, 4, 5]
    watcher.on_finish()
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 12))
    assert [line["step_time_s"] for line in lines] == [None, *[pytest.approx(GPU_S)] * 10]
