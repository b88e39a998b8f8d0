"""Samples: what a model trains on, and those of a token array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from muster_components.trainer.errors import InputError, TrainerError
from muster_components.trainer.user_code import programming_errors

Arrays = dict[str, NDArray[Any]]
"""Stacked samples by field: the first dimension of each array counts samples."""
PADDING: Final = -1
"""The index of a sample that completes a micro-batch and must not add to the loss."""
NO_LABEL: Final = -100
"""The label of positions and samples without loss, as in torch and Transformers."""

SampleKind = Literal["next_token", "tokens", "fields"]
"""Windows with one more token than positions, windows of tokens, or dictionaries of a data set."""


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """What a model needs of its samples. `weight`: see Samples; `allows_padding`: whether a sample may have no loss."""

    kind: SampleKind
    weight: float
    seq_len: int = 1
    vocab_size: int | None = None
    """Tokens must be less."""
    allows_padding: bool = True


class Samples(Protocol):
    """Map-style samples: each is a pure function of its index, so that a resumed run reads the same ones."""

    @property
    def weight_per_sample(self) -> float:
        """What the summed loss of one sample is divided by: its tokens, or 1 for an image."""
        ...

    def __len__(self) -> int: ...

    def read(self, indices: NDArray[np.int64]) -> Arrays:
        """The samples at `indices`, stacked; PADDING gives a sample of the same shapes without loss."""
        ...


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A file that is mapped into memory, as it was when it was opened.

    The kernel ends a process that reads a mapped page beyond the end of its file (SIGBUS), so `require_whole` is called
    before each read. A file that was removed or replaced by another stays readable.
    """

    path: Path
    size: int
    identity: tuple[int, int]
    """Device and inode."""

    @classmethod
    def at(cls, path: Path) -> MappedFile:
        """The file at `path`. Raises OSError."""
        status = path.stat()
        return cls(path, status.st_size, (status.st_dev, status.st_ino))

    def require_whole(self) -> None:
        """Raises TrainerError if the file has been shortened."""
        try:
            status = self.path.stat()
        except OSError:
            return
        if (status.st_dev, status.st_ino) == self.identity and status.st_size < self.size:
            raise TrainerError(
                f"--data: {self.path} was shortened while it is in use: it ends at byte {status.st_size}, and had "
                f"{self.size} bytes when it was opened",
                same_on_all_ranks=False,
            )


@dataclass(frozen=True, slots=True)
class TokenArray:
    """A file of tokens. `where` describes the place of a token in it, given its index; `files`: what they are mapped
    from."""

    tokens: NDArray[Any]
    where: Callable[[int], str] = "token {}".format
    files: tuple[MappedFile, ...] = ()


class TokenSamples:
    """Windows of `seq_len` tokens. With `overlap` they have one token more, the first of the next window, so that each
    token is the target of one window. No window reaches beyond its array."""

    def __init__(
        self,
        arrays: Sequence[TokenArray],
        seq_len: int,
        *,
        overlap: bool = True,
        weight: float | None = None,
        vocab_size: int | None = None,
        unit: str = "tokens",
    ) -> None:
        """`weight`: default: the targets of a window; `vocab_size`: tokens must be less. Raises InputError if there is
        no window."""
        self._arrays = arrays
        self._seq_len = seq_len
        self._vocab_size = vocab_size
        self._offsets = np.arange(seq_len + overlap)
        windows = [max(0, len(array.tokens) - overlap) // seq_len for array in arrays]
        self._first = np.concatenate(([0], np.cumsum(windows, dtype=np.int64)))
        self.weight_per_sample = seq_len if weight is None else weight
        if len(self) < 1:
            longest = max(len(array.tokens) for array in arrays)
            of_file = "" if len(arrays) == 1 else " in one file"
            raise InputError(
                f"--data must have at least {seq_len + overlap} {unit}{of_file} for --seq_len {seq_len}; got {longest}"
            )

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, indices: NDArray[np.int64]) -> Arrays:
        """`tokens`: int64, shape (samples, seq_len, or 1 more with overlap); all -1 in a row of padding.

        Raises InputError for a token outside of the vocabulary, with its place.
        """
        rows = np.full((len(indices), len(self._offsets)), -1, dtype=np.int64)
        array_of = np.searchsorted(self._first, indices, side="right") - 1
        for number in np.unique(array_of[indices != PADDING]):
            chosen = (array_of == number) & (indices != PADDING)
            places = (indices[chosen] - self._first[number])[:, None] * self._seq_len + self._offsets
            rows[chosen] = self._read_array(self._arrays[number], places)
        return {"tokens": rows}

    def _read_array(self, array: TokenArray, places: NDArray[np.int64]) -> NDArray[np.int64]:
        for file in array.files:
            file.require_whole()
        tokens: NDArray[np.int64] = array.tokens[places].astype(np.int64)
        outside = tokens < 0
        if self._vocab_size is not None:
            outside |= tokens >= self._vocab_size
        if outside.any():
            place = int(places[outside][0])
            limit = "0" if self._vocab_size is None else f"0 to {self._vocab_size - 1}, the vocabulary of the model"
            raise InputError(
                f"--data: tokens must be {limit}; got {array.tokens[place]} at {array.where(place)}",
                same_on_all_ranks=False,
            )
        return tokens


def _single_precision(array: NDArray[Any]) -> NDArray[Any]:
    """Python's floats are float64, which no model computes in."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


class MapDataset(Protocol):
    """A map-style data set of torch or Hugging Face: samples are dictionaries of numbers or arrays."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class UserDataset:
    """A data set of the user's code, named `reference`. Its errors that a retry would repeat become UserCodeError."""

    def __init__(self, dataset: MapDataset, reference: str) -> None:
        self._dataset = dataset
        self._reference = reference

    def __len__(self) -> int:
        with programming_errors("--data", self._reference):
            return len(self._dataset)

    def __getitem__(self, index: int, /) -> Any:
        with programming_errors("--data", f"{self._reference}: sample {index}", same_on_all_ranks=False):
            return self._dataset[index]


class FieldSamples:
    """The dictionaries of a data set, stacked field by field. Each counts 1 in the loss."""

    weight_per_sample = 1.0

    def __init__(self, dataset: MapDataset, name: str, files: tuple[MappedFile, ...] = ()) -> None:
        """`name` is for messages; `files`: what the data set is mapped from.

        Raises InputError if there is no sample, or the first is not a dictionary.
        """
        self._dataset = dataset
        self._files = files
        self._name = name
        if len(dataset) < 1:
            raise InputError(f"--data {name} must have at least one sample; got none")
        self._shapes = {field: array.shape for field, array in self._sample(0).items()}

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, indices: NDArray[np.int64]) -> Arrays:
        """The fields of the samples. Padding is sample 0 with NO_LABEL as `labels` or `label`."""
        for file in self._files:
            file.require_whole()
        rows = [self._sample(int(max(index, 0))) for index in indices]
        stacked = {field: np.stack([row[field] for row in rows]) for field in self._shapes}
        for field in stacked.keys() & {"labels", "label"}:
            stacked[field][indices == PADDING] = NO_LABEL
        return stacked

    def _sample(self, index: int) -> dict[str, NDArray[Any]]:
        try:
            sample = self._dataset[index]
        except Exception as error:
            error.add_note(f"--data {self._name}: sample {index} cannot be read")
            raise
        if not isinstance(sample, Mapping):
            raise self._error(index, f"must be a dictionary; got {type(sample).__name__}")
        arrays = {str(field): self._array(index, str(field), value) for field, value in sample.items()}
        shapes = {field: array.shape for field, array in arrays.items()}
        expected = getattr(self, "_shapes", shapes)
        if shapes != expected:
            raise self._error(index, f"must have the fields and shapes of sample 0, {expected}; got {shapes}")
        return arrays

    def _array(self, index: int, field: str, value: object) -> NDArray[Any]:
        got = type(value).__name__
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:  # of torch or NumPy: bfloat16, rows of other lengths
            raise self._error(index, f"field {field!r} must be numbers that NumPy has; got {got}: {error}") from error
        if array.dtype.kind not in "biuf":
            raise self._error(index, f"field {field!r} must be numbers; got {got}")
        return _single_precision(array)

    def _error(self, index: int, problem: str) -> InputError:
        return InputError(f"--data {self._name}: sample {index} {problem}", same_on_all_ranks=False)
