"""A whole optimizer step as one CUDA graph, for models whose kernels are too short to launch one by one.

The first steps run as usual, since compilation, cuBLAS and the allocator must have done their work before the capture.
Each later step copies its batches and scalars to the tensors that the graph reads, and replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from muster_components.trainer.errors import TrainerError
from muster_components.trainer.models.interface import Batch

EAGER_STEPS: Final = 3


class GraphedStep:
    """Calls `function` in the first steps, and replays its CUDA graph in all later ones.

    `function` takes the micro-batches and returns one tensor. It must launch the same kernels on the same addresses in
    every call, and must not wait for the GPU. What else it reads has to be changed in place.
    """

    def __init__(self, function: Callable[[Sequence[Batch]], Tensor]) -> None:
        self._function = function
        # One stream for all calls: autograd remembers that of a parameter's first use, and capture fails on others.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        self._calls = 0
        self._batches: list[Batch] = []
        self._result: Tensor | None = None

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        """The result of `function`; the next call overwrites it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if self._result is None:
                self._batches = [{name: tensor.clone() for name, tensor in batch.items()} for batch in batches]
            else:
                for target, source in zip(self._batches, batches, strict=True):
                    for name, tensor in target.items():
                        tensor.copy_(source[name], non_blocking=True)
            result = self._run()
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _run(self) -> Tensor:
        self._calls += 1
        if self._calls <= EAGER_STEPS:
            return self._function(self._batches)
        if self._result is None:
            torch.cuda.empty_cache()
            self._result = self._capture()
        self._graph.replay()
        return self._result

    def _capture(self) -> Tensor:
        try:
            with torch.cuda.graph(self._graph, stream=self._stream):
                return self._function(self._batches)
        except RuntimeError as error:
            # A failed capture ends with a second error, of the end of the capture.
            cause = error.__context__ or error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
            # Dynamo's errors have what was raised in the line below "backend='inductor' raised:".
            reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
            raise TrainerError(
                f"the step cannot be captured as one CUDA graph: {reason}; use --no_cuda_graph, or --no_compile if the "
                "model is compiled"
            ) from error
