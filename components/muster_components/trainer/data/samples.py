"""Samples: what a model trains on, and those of a token array."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from muster_components.trainer.errors import InputError

Arrays = dict[str, NDArray[Any]]
"""Stacked samples by field: the first dimension of each array counts samples."""
PADDING: Final = -1
"""The index of a sample that completes a micro-batch and must not add to the loss."""


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


class TokenSamples:
    """Windows of `seq_len` + 1 tokens that overlap by one token: each token is the target of one window."""

    def __init__(self, tokens: NDArray[np.uint8], seq_len: int) -> None:
        self._tokens = tokens
        self._seq_len = seq_len
        self._offsets = np.arange(seq_len + 1)
        if len(self) < 1:
            raise InputError(
                f"--data must have at least {seq_len + 1} bytes of text for --seq_len {seq_len}; got {len(tokens)}"
            )

    def __len__(self) -> int:
        return max(0, len(self._tokens) - 1) // self._seq_len

    @property
    def weight_per_sample(self) -> float:
        """The targets of a window."""
        return self._seq_len

    def read(self, indices: NDArray[np.int64]) -> Arrays:
        """`tokens`: int64, shape (samples, seq_len + 1); all -1 in a row of padding."""
        rows = self._tokens[np.maximum(indices, 0)[:, None] * self._seq_len + self._offsets].astype(np.int64)
        rows[indices == PADDING] = -1
        return {"tokens": rows}
