"""The CUDA graph of a step where torch cannot capture it. Captures themselves need a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from muster_components.trainer.cuda_graph import EAGER_STEPS, GraphedStep
from muster_components.trainer.errors import EXIT_FAILED, TrainerError


class CaptureWithErrors:
    """`torch.cuda.graph`, whose end raises an error of its own after a failed capture, as CUDA's does."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture\nSearch for")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)

    @contextlib.contextmanager
    def within(stream: object) -> Iterator[None]:
        yield

    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": within,
        "CUDAGraph": SimpleNamespace,
        "empty_cache": lambda: None,
        "graph": CaptureWithErrors,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def step_that_fails_in_the_capture(error: Exception) -> GraphedStep:
    calls = 0

    def step(batches: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls > EAGER_STEPS:
            raise error
        return torch.zeros(())

    graphed = GraphedStep(step)
    for _ in range(EAGER_STEPS):
        graphed([{"x": torch.zeros(2)}])
    return graphed


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("CUDA error: not permitted\nSearch for `cuda`", "CUDA error: not permitted"),
        (
            "backend='inductor' raised:\nCUDA error: not permitted\n",
            "backend='inductor' raised: CUDA error: not permitted",
        ),
        ("", "RuntimeError"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_a_step_that_cannot_be_captured_ends_the_run_with_the_first_error_and_what_to_use(
    error: str, reason: str
) -> None:
    graphed = step_that_fails_in_the_capture(RuntimeError(error))
    with pytest.raises(TrainerError, match=f"CUDA graph: {reason}; use --no_cuda_graph") as e:
        graphed([{"x": torch.zeros(2)}])
    assert e.value.exit_code == EXIT_FAILED
    assert isinstance(e.value.__cause__, RuntimeError)


@pytest.mark.usefixtures("no_gpu")
def test_a_lack_of_memory_in_a_capture_stays_one() -> None:
    graphed = step_that_fails_in_the_capture(torch.OutOfMemoryError("out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        graphed([{"x": torch.zeros(2)}])
