"""Micro-batches for a model, of the right shapes, without reading the data of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from muster_components.trainer.data.samples import Arrays, Samples
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import Batch, TrainModel


def example_batches(model: TrainModel, samples: Samples | None) -> Callable[[int], Batch]:
    """A function that returns n samples on the CPU. `samples` are read only if they determine the shapes.

    Raises InputError if they do, and there are none.
    """
    spec = model.sample_spec
    if spec.kind == "fields" and samples is None:
        raise InputError(f"--plan needs --data for --model {model.name}: its samples have the shapes of the data")

    def batch(count: int) -> Batch:
        arrays: Arrays
        if spec.kind == "fields":
            assert samples is not None
            arrays = samples.read(np.zeros(count, dtype=np.int64))
        else:
            length = spec.seq_len + (spec.kind == "next_token")
            arrays = {"tokens": np.zeros((count, length), dtype=np.int64)}
        collated = model.collate(arrays, np.arange(count, dtype=np.int64), 0)
        return {name: torch.from_numpy(array) for name, array in collated.items()}

    return batch
