"""Batches and labels of next-token, masked-token and image-label training."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # imports torch

IMAGE = np.zeros((1, 3, 4, 4))


def masked(length: int, numbers: range, seed: int = 0, tokens: int = 50) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, inputs and labels; 99 is the mask token."""
    from muster_components.trainer.models.objectives import MaskedToken

    token_BL = np.random.default_rng(1).integers(0, tokens, (len(numbers), length))
    batch = MaskedToken(99, 100).collate({"tokens": token_BL}, np.array(numbers), seed)
    return token_BL, batch["input_ids"], batch["labels"]


@pytest.mark.parametrize("length", [1, 3, 10, 128, 511])
def test_exactly_15_percent_of_the_positions_of_each_sequence_have_labels(length: int) -> None:
    tokens, inputs, labels = masked(length, range(20))
    assert ((labels != -100).sum(axis=1) == max(1, round(0.15 * length))).all()
    assert (labels[labels != -100] == tokens[labels != -100]).all()
    assert (inputs[labels == -100] == tokens[labels == -100]).all()


def test_80_percent_of_masked_positions_have_the_mask_token_and_10_a_random_one() -> None:
    tokens, inputs, labels = masked(512, range(200))
    chosen = labels != -100
    assert (inputs[chosen] == 99).mean() == pytest.approx(0.8, abs=0.02)
    assert (inputs[chosen] == tokens[chosen]).mean() == pytest.approx(0.1, abs=0.02)


def test_masked_positions_are_a_function_of_seed_and_number_and_cover_all_positions() -> None:
    _, inputs, labels = masked(64, range(200))
    _, again, labels_again = masked(64, range(200))
    assert (labels == labels_again).all()
    assert (inputs == again).all()
    chosen = labels != -100
    assert len({row.tobytes() for row in chosen}) > 190
    assert chosen.mean(axis=0) == pytest.approx(np.full(64, 10 / 64), abs=0.09)
    other = masked(64, range(200), seed=1)[2] != -100
    assert (chosen != other).any(axis=1).all()


def test_a_number_has_the_same_mask_wherever_it_is_in_a_batch() -> None:
    from muster_components.trainer.models.objectives import MaskedToken

    row = np.arange(40)[None]
    alone = MaskedToken(99, 100).collate({"tokens": row}, np.array([7]), 3)
    among = MaskedToken(99, 100).collate({"tokens": np.repeat(row, 3, axis=0)}, np.array([5, 6, 7]), 3)
    assert (among["labels"][2] == alone["labels"][0]).all()


SENTINELS = tuple(range(199, 99, -1))


def corrupted(tokens: np.ndarray, numbers: range, seed: int = 0, end: int | None = 1) -> dict[str, np.ndarray]:
    """Tokens below 100; the sentinels are 199, 198 and so on, and the decoder starts with 0."""
    from muster_components.trainer.models.objectives import CorruptedSpans

    return CorruptedSpans(SENTINELS, 0, end).collate({"tokens": tokens}, np.array(numbers), seed)


def spans_of(row: np.ndarray) -> dict[int, list[int]]:
    """The tokens that follow each sentinel; 0: those before the first one."""
    spans: dict[int, list[int]] = {0: []}
    for token in row.tolist():
        if token >= 100:
            assert token not in spans
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    return spans


@pytest.mark.parametrize("length", [8, 10, 64, 511])
def test_inputs_and_labels_of_corrupted_spans_together_are_the_sequence(length: int) -> None:
    from muster_components.trainer.models.objectives import CorruptedSpans

    tokens = np.random.default_rng(1).integers(2, 100, (20, length))
    batch = corrupted(tokens, range(20))
    corrupted_count, spans = max(1, round(0.15 * length)), max(1, round(0.05 * length))
    assert batch["labels"].shape == (20, corrupted_count + spans + 1)
    assert batch["labels"].shape[1] == CorruptedSpans(SENTINELS, 0, 1).weight(length)
    assert batch["input_ids"].shape == (20, length - corrupted_count + spans + 1)
    assert (batch["decoder_input_ids"] == np.insert(batch["labels"][:, :-1], 0, 0, axis=1)).all()
    for row, inputs, labels in zip(tokens, batch["input_ids"], batch["labels"], strict=True):
        assert (inputs[-1], labels[-1]) == (1, 1)
        kept, predicted = spans_of(inputs[:-1]), spans_of(labels[:-1])
        assert list(kept) == list(predicted) == [0, *SENTINELS[:spans]]
        assert predicted.pop(0) == []
        assert all(predicted.values())
        together = [token for sentinel in kept for token in (*predicted.get(sentinel, ()), *kept[sentinel])]
        assert together == row.tolist()


def test_corrupted_spans_are_a_function_of_seed_and_number_and_cover_all_positions() -> None:
    tokens = np.arange(64)[None].repeat(300, axis=0)
    labels = corrupted(tokens, range(300))["labels"]
    assert (corrupted(tokens, range(300))["labels"] == labels).all()
    assert (corrupted(tokens[:3], range(5, 8))["labels"] == labels[5:8]).all()
    assert (corrupted(tokens, range(300), seed=1)["labels"] != labels).any(axis=1).all()
    assert len({row.tobytes() for row in labels}) > 290
    counts = np.bincount(labels[:, :-1][labels[:, :-1] < 100], minlength=64)
    assert counts[0] == 0  # a sequence begins with what is kept
    assert (counts[1:] > 0).all()


def test_a_tokenizer_without_end_token_leaves_it_out_of_inputs_and_labels() -> None:
    tokens = np.arange(2, 42)[None]
    without, with_end = corrupted(tokens, range(1), end=None), corrupted(tokens, range(1))
    assert (without["labels"] == with_end["labels"][:, :-1]).all()
    assert (without["input_ids"] == with_end["input_ids"][:, :-1]).all()


def test_padding_has_no_labels_and_valid_inputs() -> None:
    from muster_components.trainer.models.objectives import CorruptedSpans, MaskedToken, NextToken

    padding = {"tokens": np.full((1, 9), -1)}
    for objective in (MaskedToken(99, 100), NextToken(), CorruptedSpans(SENTINELS, 0, 1)):
        batch = objective.collate(padding, np.array([0]), 0)
        assert (batch["labels"] == -100).all()
        assert all((batch[name] >= 0).all() for name in batch if name != "labels")


def test_the_loss_is_the_sum_over_labels() -> None:
    import torch

    from muster_components.trainer.models.objectives import logits_loss

    logits, labels = torch.zeros(2, 3, 7), torch.tensor([[1, -100, 2], [-100, -100, 6]])
    assert logits_loss(logits, labels).item() == pytest.approx(3 * np.log(7))
    assert logits_loss(logits[:, 0], labels[:, 0]).item() == pytest.approx(np.log(7))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({"image": IMAGE, "labels": np.array([0])}, "must have the field pixel_values for this model"),
        ({"pixel_values": IMAGE.T[None, ..., 0], "labels": np.array([0])}, "must have shape (3, 4, 4) for this model"),
        ({"pixel_values": IMAGE, "label": np.array([5])}, "labels must be 0 to 4 for this model; got 5"),
        ({"pixel_values": IMAGE, "label": np.array([0.5])}, "must be one integer; got float64"),
    ],
)
def test_images_that_do_not_fit_the_model_are_rejected(samples: dict[str, np.ndarray], message: str) -> None:
    from muster_components.trainer.errors import InputError
    from muster_components.trainer.models.objectives import ImageLabel

    with pytest.raises(InputError, match=re.escape(message)):
        ImageLabel(5, (3, 4, 4)).collate(samples, np.array([0]), 0)
