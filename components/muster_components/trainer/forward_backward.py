"""The gradients of one step from this rank's part of the global batch.

The loss is the mean over the tokens of the global batch, for any number of ranks, micro-steps and padding: each rank
divides the sum of its losses by the tokens of all ranks. FSDP2 and DDP average gradients over the data-parallel ranks,
so the loss is multiplied by their number first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import record_function

from muster_components.trainer.data.order import sample_indices
from muster_components.trainer.data.prefetch import Prefetcher
from muster_components.trainer.data.samples import PADDING, Arrays, Samples
from muster_components.trainer.models.interface import Batch, TrainModel, forward_arguments
from muster_components.trainer.parallel.sharding import ParallelModel
from muster_components.trainer.plan import TrainPlan

DATA_SET_WORKERS: Final = 2
"""Processes that read a data set of dictionaries, whose samples may take long. Tokens are mapped into memory."""


class ForwardBackward(Protocol):
    """How this rank turns its part of the global batch into gradients."""

    def run(self, batches: Sequence[Batch]) -> Tensor:
        """Add the gradients of all micro-batches to the parameters of all parts.

        Returns the summed losses of this rank's samples, float32 on the device.
        """
        ...


class BatchReader:
    """Reads the micro-batches of one data-parallel rank."""

    def __init__(
        self,
        plan: TrainPlan,
        model: TrainModel,
        samples: Samples,
        device: torch.device,
        data_rank: int,
    ) -> None:
        """Ranks with the same `data_rank` (of `plan.mesh.data_ranks`) read the same samples."""
        self._plan = plan
        self._model = model
        self._samples = samples
        self._device = device
        self._data_rank = data_rank
        workers = plan.config.data.workers
        if workers is None:
            workers = DATA_SET_WORKERS if model.sample_spec.kind == "fields" else 0
        micro_steps, steps = plan.gradient_accumulation_steps, plan.config.steps
        self._ahead = (
            Prefetcher(self._read_alone, micro_steps=micro_steps, steps=steps, workers=workers) if workers else None
        )

    def read(self, step: int) -> list[Batch]:
        """The micro-batches of `step` (from 1): in each, every rank in turn takes `micro_batch` samples. With worker
        processes, steps must be read in order."""
        if self._ahead is not None:
            return [self._batch(arrays) for arrays in self._ahead.read(step)]
        micro_steps = range(self._plan.gradient_accumulation_steps)
        return [self._batch(self._read(step, micro_step)) for micro_step in micro_steps]

    def close(self) -> None:
        """End the worker processes."""
        if self._ahead is not None:
            self._ahead.close()

    def example(self) -> list[Batch]:
        """Micro-batches of the same shapes, of no step: padding, or copies of sample 0 for a model that allows none."""
        index = PADDING if self._model.sample_spec.allows_padding else 0
        chosen = np.full(self._plan.micro_batch, index, dtype=np.int64)
        batch = self._batch(self._collate(chosen, np.arange(self._plan.micro_batch, dtype=np.int64)))
        return [batch] * self._plan.gradient_accumulation_steps

    def _read_alone(self, step: int, micro_step: int) -> Arrays:
        """In a worker, whose generator is not that of the rank."""
        seed_generators(self._plan.config.seed, step, self._data_rank)
        return self._read(step, micro_step)

    def _read(self, step: int, micro_step: int) -> Arrays:
        plan = self._plan
        first = (micro_step * plan.mesh.data_ranks + self._data_rank) * plan.micro_batch
        positions = range(first, first + plan.micro_batch)
        chosen = sample_indices(
            seed=plan.config.seed,
            step=step - 1,
            positions=positions,
            global_batch=plan.global_batch,
            samples=len(self._samples),
        )
        numbers = (step - 1) * plan.global_batch + np.arange(positions.start, positions.stop)
        return self._collate(chosen, numbers)

    def _collate(self, indices: NDArray[np.int64], numbers: NDArray[np.int64]) -> Arrays:
        return self._model.collate(self._samples.read(indices), numbers, self._plan.config.seed)

    def _batch(self, arrays: Arrays) -> Batch:
        return {name: self._copy(torch.from_numpy(array)) for name, array in arrays.items()}

    def _copy(self, tensor: Tensor) -> Tensor:
        if self._plan.precision == "bf16" and tensor.is_floating_point():
            tensor = tensor.bfloat16()  # images; the weights that they meet are bf16
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


def seed_generators(seed: int, step: int, data_rank: int) -> None:
    """Seed PyTorch's generators by step and rank, so that dropout within a model does not depend on earlier steps."""
    torch.manual_seed(((seed * 1_000_003 + step) * 65_536 + data_rank) % 2**64)


class GradientAccumulation:
    """Forward and backward of one part, micro-batch after micro-batch."""

    def __init__(self, model: TrainModel, parallel: ParallelModel, gradient_scale: float) -> None:
        """`gradient_scale`: the factor between the summed loss of a micro-batch and what is differentiated."""
        (self._part,) = parallel.parts
        self._model = model
        self._parallel = parallel
        self._gradient_scale = gradient_scale

    def run(self, batches: Sequence[Batch]) -> Tensor:
        loss_sum = torch.zeros((), device=self._parallel.device)
        for number, batch in enumerate(batches, start=1):
            with self._parallel.gradient_sync_context(last_micro_batch=number == len(batches)):
                with record_function("forward"), self._parallel.forward_context():
                    output = self._part.module(**forward_arguments(self._model, batch))
                    loss = self._model.loss(output, batch)
                with record_function("backward"):
                    (loss * self._gradient_scale).backward()  # type: ignore[no-untyped-call]
                    self._part.collect_gradients()
            loss_sum += loss.detach()
        self._part.require_gradients()
        return loss_sum
