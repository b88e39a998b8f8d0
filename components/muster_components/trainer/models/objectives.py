"""What a model learns: the arguments of its forward and the labels of each sample, and the loss of its logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from muster_components.trainer.data.order import mix_key, mix_u64
from muster_components.trainer.data.samples import NO_LABEL, Arrays, SampleKind
from muster_components.trainer.errors import InputError

LABELS: Final = "labels"
"""The field of a batch that the loss needs and that is not an argument of forward."""
MASKED_FRACTION: Final = 0.15
"""Of the positions of a sequence, as in BERT (Devlin et al., 2018)."""
MEAN_SPAN: Final = 3
"""Tokens of a corrupted span, as in T5 (Raffel et al., 2020)."""


class Objective(Protocol):
    """From samples to the arguments of forward, and from logits to the loss."""

    @property
    def samples(self) -> SampleKind:
        """What a sample is."""
        ...

    def weight(self, seq_len: int) -> float:
        """What the summed loss of one sample is divided by."""
        ...

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """As TrainModel.collate."""
        ...


@dataclass(frozen=True, slots=True)
class NextToken:
    """Causal language model: each position predicts the token after it."""

    samples: SampleKind = "next_token"

    def weight(self, seq_len: int) -> float:
        return seq_len

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """`input_ids` and `labels`, both int64 of shape (B, L)."""
        tokens = samples["tokens"]
        targets = tokens[:, 1:]
        return {"input_ids": np.maximum(tokens[:, :-1], 0), LABELS: np.where(targets < 0, NO_LABEL, targets)}


@dataclass(frozen=True, slots=True)
class MaskedToken:
    """Masked language model: exactly round(0.15 L) positions of each sequence are predicted.

    Of these, 80% have the mask token as input, 10% a random token and 10% their own (Devlin et al., 2018). All choices
    are pure functions of seed, running number of the sample and position.
    """

    mask_token: int
    vocab_size: int
    samples: SampleKind = "tokens"

    def weight(self, seq_len: int) -> float:
        return masked_positions(seq_len)

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """`input_ids` and `labels`, both int64 of shape (B, L)."""
        token_BL = samples["tokens"]
        length = token_BL.shape[1]
        rank_BL = np.argsort(_random(seed, number_B, length, 0), axis=1, kind="stable").argsort(axis=1, kind="stable")
        masked_BL = rank_BL < masked_positions(length)
        # Each in 0..9, independent of the order above.
        choice_BL = (_random(seed, number_B, length, 1) % np.uint64(10)).astype(np.int64)
        random_BL = (_random(seed, number_B, length, 2) % np.uint64(self.vocab_size)).astype(np.int64)
        input_BL = np.where(masked_BL & (choice_BL < 8), self.mask_token, token_BL)
        input_BL = np.where(masked_BL & (choice_BL == 8), random_BL, input_BL)
        labels_BL = np.where(masked_BL & (token_BL >= 0), token_BL, NO_LABEL)
        return {"input_ids": np.maximum(input_BL, 0), LABELS: labels_BL}


@dataclass(frozen=True, slots=True)
class CorruptedSpans:
    """Encoder-decoder model: spans of the input are replaced by one sentinel token each, and the decoder predicts them.

    15% of the tokens in spans of 3 on average, as in T5 (Raffel et al., 2020; `random_spans_noise_mask` of its code).
    Lengths of the spans are pure functions of seed and running number of the sample; inputs and labels have the same
    shapes for all samples. The decoder's input is its labels, shifted by one position.
    """

    sentinels: tuple[int, ...]
    """In the order in which they are used; at least `spans`."""
    decoder_start: int
    end: int | None
    """Follows inputs and labels; None: nothing."""
    samples: SampleKind = "tokens"

    def weight(self, seq_len: int) -> float:
        """The labels: corrupted tokens, a sentinel before each span, and the end."""
        return corrupted_tokens(seq_len) + corrupted_spans(seq_len) + (self.end is not None)

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """`input_ids`, (B, kept tokens + spans + end); `decoder_input_ids` and `labels`, (B, weight); all int64."""
        token_BL = samples["tokens"]
        rows, length = token_BL.shape
        corrupted, spans = corrupted_tokens(length), corrupted_spans(length)
        # Spans alternate, and the first is kept.
        length_BS = np.empty((rows, 2 * spans), dtype=np.int64)
        length_BS[:, ::2] = _random_lengths(seed, number_B, length - corrupted, spans, 3)
        length_BS[:, 1::2] = _random_lengths(seed, number_B, corrupted, spans, 4)
        begins_BL = np.zeros((rows, length), dtype=np.int64)
        np.put_along_axis(begins_BL, np.cumsum(length_BS, axis=1) - length_BS, 1, axis=1)
        span_BL = np.cumsum(begins_BL, axis=1) - 1
        sentinel_BL = np.array(self.sentinels)[span_BL // 2]
        input_BL = self._tokens(token_BL, sentinel_BL, span_BL % 2 == 1, begins_BL == 1)
        label_BL = self._tokens(token_BL, sentinel_BL, span_BL % 2 == 0, begins_BL == 1)
        decoder_BL = np.concatenate([np.full((rows, 1), self.decoder_start), label_BL[:, :-1]], axis=1)
        is_padding_B1 = token_BL[:, :1] < 0
        return {
            "input_ids": np.maximum(input_BL, 0),
            "decoder_input_ids": np.maximum(decoder_BL, 0),
            LABELS: np.where(is_padding_B1, NO_LABEL, label_BL),
        }

    def _tokens(
        self, token_BL: NDArray[Any], sentinel_BL: NDArray[Any], left_out_BL: NDArray[Any], begins_BL: NDArray[Any]
    ) -> NDArray[np.int64]:
        """The tokens with one sentinel instead of each span that is left out, and the end."""
        chosen_BL = ~left_out_BL | begins_BL
        found_BL = np.where(left_out_BL, sentinel_BL, token_BL)[chosen_BL].reshape(len(token_BL), -1)
        end_B1 = np.full((len(token_BL), int(self.end is not None)), self.end or 0)
        return np.concatenate([found_BL, end_B1], axis=1, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ImageLabel:
    """Image classification: `pixel_values`, shape (C, H, W), and `labels` (or `label`), one integer per image."""

    classes: int
    image_shape: tuple[int, ...]
    samples: SampleKind = "fields"

    def weight(self, seq_len: int) -> float:
        return 1.0

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """`pixel_values`, float32 of shape (B, C, H, W), and `labels`, int64 of shape (B,). Raises InputError."""
        images, labels = _field(samples, "pixel_values"), _field(samples, LABELS, "label")
        if images.shape[1:] != self.image_shape:
            raise InputError(
                f"--data: pixel_values must have shape {self.image_shape} for this model; got {images.shape[1:]}",
                same_on_all_ranks=False,
            )
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(
                f"--data: a label must be one integer; got {labels.dtype} of shape {labels.shape[1:]}",
                same_on_all_ranks=False,
            )
        wrong = labels[(labels != NO_LABEL) & ((labels < 0) | (labels >= self.classes))]
        if wrong.size:
            raise InputError(
                f"--data: labels must be 0 to {self.classes - 1} for this model; got {wrong[0]}",
                same_on_all_ranks=False,
            )
        return {"pixel_values": images.astype(np.float32), LABELS: labels.astype(np.int64)}


def masked_positions(seq_len: int) -> int:
    """How many positions of a sequence MaskedToken predicts; at least 1."""
    return max(1, round(MASKED_FRACTION * seq_len))


def corrupted_tokens(seq_len: int) -> int:
    """How many tokens of a sequence CorruptedSpans leaves to the decoder; at least 1."""
    return masked_positions(seq_len)


def corrupted_spans(seq_len: int) -> int:
    """In how many spans these tokens are; at least 1."""
    return max(1, round(corrupted_tokens(seq_len) / MEAN_SPAN))


def logits_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed cross-entropy in nats, float32. `logits`: (..., V); `labels`: (...), NO_LABEL where there is none."""
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten(), ignore_index=NO_LABEL, reduction="sum")


def _field(samples: Mapping[str, NDArray[Any]], *names: str) -> NDArray[Any]:
    for name in names:
        if name in samples:
            return samples[name]
    present = ", ".join(sorted(samples)) or "none"
    raise InputError(
        f"--data must have the field {' or '.join(names)} for this model; it has {present}", same_on_all_ranks=False
    )


def _random(seed: int, number_B: NDArray[np.int64], length: int, stream: int) -> NDArray[np.uint64]:
    """Independent uniform 64-bit integers of shape (B, L) by (seed, number, position, stream)."""
    rows = mix_u64(number_B.astype(np.uint64) ^ np.uint64(mix_key(seed, stream)))
    return mix_u64(rows[:, None] + np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _random_lengths(seed: int, number_B: NDArray[np.int64], total: int, parts: int, stream: int) -> NDArray[np.int64]:
    """`parts` lengths of at least 1 with the sum `total`, all such lists equally likely; shape (B, parts)."""
    order = np.argsort(_random(seed, number_B, total - 1, stream), axis=1, kind="stable")
    end_BP = np.full((len(number_B), parts), total)
    end_BP[:, :-1] = np.sort(order[:, : parts - 1], axis=1) + 1
    return np.diff(end_BP, axis=1, prepend=0)
