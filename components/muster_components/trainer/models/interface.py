"""What the trainer needs of a model. It does not depend on ranks; the trainer shards, splits and
compiles the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from muster_components.trainer.compilation.backends import Backend
from muster_components.trainer.data.samples import Arrays, SampleSpec

Batch = dict[str, Tensor]
"""Keyword arguments of the module's forward and the model's `targets`, on the device; the first dimension of each
counts samples."""


class TrainModel(Protocol):
    """What `--model` names."""

    @property
    def name(self) -> str:
        """The value of `--model`."""
        ...

    @property
    def summary(self) -> str:
        """Its shape for the console, such as `6 layers x 384, vocabulary 256`."""
        ...

    @property
    def sample_spec(self) -> SampleSpec:
        """What it needs of the data."""
        ...

    @property
    def targets(self) -> frozenset[str]:
        """The fields of a batch that only `loss` needs; they are no arguments of forward."""
        ...

    def build(self) -> nn.Module:
        """The whole module. The caller sets the device; on the meta device it has shapes only."""
        ...

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        """The repeated blocks of `module`, or of a part of it: units of sharding and activation checkpointing."""
        ...

    def compiled_modules(self, module: nn.Module) -> Sequence[nn.Module]:
        """The modules of `module`, or of a part of it, that are compiled, each by itself: blocks, and a large head."""
        ...

    def compile_whole(self, module: nn.Module, backend: Backend) -> None:
        """Compile the whole `module` in place: for one GPU and few blocks, so that kernels are fused across them."""
        ...

    def initialize(self, module: nn.Module, device: torch.device, seed: int) -> None:
        """Allocate `module`, or a part of it, on `device`, and set the weights of this rank's shards and the buffers.

        The weights must not depend on the number of ranks: they are seeded by parameter name, or read from files.
        """
        ...

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """The batch from stacked samples, before it is copied to the device.

        `number_B` are the running numbers of the samples in the run (step x global batch + position). They do not
        depend on the number of ranks, so random choices (masked positions) are functions of number and seed.
        """
        ...

    def loss(self, output: Any, batch: Batch) -> Tensor:
        """The loss summed over the micro-batch, in float32, from what the module's forward returned."""
        ...

    def flops_per_sample(self) -> int | None:
        """Forward and backward FLOPs of one sample; None if unknown."""
        ...

    def architecture(self) -> dict[str, object]:
        """JSON values that determine names, shapes and meaning of the parameters: a checkpoint must have the same."""
        ...


def forward_arguments(model: TrainModel, batch: Batch) -> Batch:
    """The batch without the fields that only the loss needs."""
    return {name: tensor for name, tensor in batch.items() if name not in model.targets}
