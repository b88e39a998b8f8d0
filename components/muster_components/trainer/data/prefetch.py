"""Micro-batches that worker processes read ahead of their steps, so that a slow data set delays no step.

torch's DataLoader with the order of the steps as its sampler. What a worker reads is a function of step and micro-step
alone, so neither the number of workers nor a resume changes what a rank trains on.
"""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.utils.data import DataLoader, Dataset

from muster_components.trainer.data.samples import Arrays

AHEAD: Final = 2
"""Micro-batches that each worker has read or reads, beside those that are used."""


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as text."""

    def __str__(self) -> str:
        return f"in a worker that reads data\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """An error in a worker."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> ReadFailure:
        """With the error itself, or one of its text if it cannot be sent."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the user's class may do anything
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)


class MicroBatches(Dataset[Arrays | ReadFailure]):
    """By number: `(step - 1) x micro-steps + micro-step`."""

    def __init__(self, read: Callable[[int, int], Arrays], micro_steps: int) -> None:
        self._read = read
        self._micro_steps = micro_steps

    def __getitem__(self, number: int) -> Arrays | ReadFailure:
        step, micro_step = divmod(number, self._micro_steps)
        try:
            return self._read(step + 1, micro_step)
        except Exception as error:  # raised by the rank in the step that needs the data
            return ReadFailure.of(error)


class Prefetcher:
    """Reads the micro-batches of all steps from the first one that is asked for."""

    def __init__(self, read: Callable[[int, int], Arrays], *, micro_steps: int, steps: int, workers: int) -> None:
        """`read`: a micro-batch by step (from 1) and micro-step; `steps`: the last one."""
        self._batches = MicroBatches(read, micro_steps)
        self._micro_steps = micro_steps
        self._end = steps * micro_steps
        self._workers = workers
        self._ahead: Iterator[Arrays | ReadFailure] | None = None

    def read(self, step: int) -> list[Arrays]:
        """The micro-batches of `step`, which must be the one after that of the last call. Raises what `read` raised."""
        if self._ahead is None:
            self._ahead = iter(self._loader((step - 1) * self._micro_steps))
        return [self._next() for _ in range(self._micro_steps)]

    def close(self) -> None:
        """End the workers: they are the iterator's."""
        self._ahead = None

    def _next(self) -> Arrays:
        assert self._ahead is not None
        try:
            found = next(self._ahead)
        except RuntimeError as error:  # a worker has died
            traceback.clear_frames(error.__traceback__)  # else the error would keep the other workers
            raise
        if isinstance(found, ReadFailure):
            raise found.error from WorkerTraceback(found.trace)
        return found

    def _loader(self, first: int) -> DataLoader[Arrays | ReadFailure]:
        return DataLoader(
            self._batches,
            batch_size=None,  # a micro-batch is one item
            sampler=range(first, self._end),
            num_workers=self._workers,
            prefetch_factor=AHEAD,
            # Arrays pass through pipes: tensors would need /dev/shm, which is small in pods.
            collate_fn=_unchanged,  # type: ignore[arg-type]  # of items: there is no batch size
            worker_init_fn=_reset_signals,
            multiprocessing_context="fork",  # the data set of a user's module need not be picklable
            generator=torch.Generator(),  # torch's own is seeded for the step
        )


def _unchanged(item: Arrays | ReadFailure) -> Arrays | ReadFailure:
    return item


def _reset_signals(worker: int) -> None:
    """The rank's handlers are inherited: a worker would take a signal for the request to save a checkpoint."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the rank ends its workers
