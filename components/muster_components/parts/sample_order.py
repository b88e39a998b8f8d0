"""Which samples a rank reads in a step, for any number of ranks and from any step on. Needs only NumPy."""

from __future__ import annotations

from muster_components.trainer.data.order import sample_indices
from muster_components.trainer.errors import InputError


def rank_samples(
    *, step: int, samples: int, global_batch: int, rank: int = 0, world_size: int = 1, seed: int = 0
) -> list[int]:
    """The indices of the samples (0 <= i < `samples`) that a rank reads in `step` (from 0).

    The global batch of a step is the same for any `world_size`, and each sample is read once per epoch. Nothing has to
    be saved but the step: a run that resumes with another number of ranks repeats and skips none. The ranks' parts
    differ by at most one sample. Raises InputError.
    """
    for name, value, least in (("step", step, 0), ("samples", samples, 1), ("global_batch", global_batch, 1)):
        if value < least:
            raise InputError(f"{name} must be at least {least}; got {value}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank must be from 0 to world_size - 1, {world_size - 1}; got {rank}")
    positions = range(rank * global_batch // world_size, (rank + 1) * global_batch // world_size)
    found = sample_indices(seed=seed, step=step, positions=positions, global_batch=global_batch, samples=samples)
    return [int(index) for index in found]
