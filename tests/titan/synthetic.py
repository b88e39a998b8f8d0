"""A small model on made-up tokens, for TorchTitan's `experimental.custom_import`. Samples depend on rank and position
alone, so that a run that was stopped and resumed has the losses of one that was not."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torchtitan.protocols.train_spec as specs
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.models.llama3 import (
    TransformerModelArgs,
    get_train_spec,
)

VOCABULARY = 256


class Tokens(BaseDataLoader):  # type: ignore[misc, unused-ignore]
    """`STEP_SECONDS` is the time that a batch takes."""

    def __init__(self, config: Any, rank: int) -> None:
        self._shape = (config.training.local_batch_size, config.training.seq_len + 1)
        self._rank, self._number = rank, 0
        self._pause_s = float(os.environ.get("STEP_SECONDS", "0"))

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            generator = torch.Generator().manual_seed(1000 * self._rank + self._number)
            self._number += 1
            tokens = torch.randint(0, VOCABULARY, self._shape, generator=generator)
            time.sleep(self._pause_s)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, int]:
        return {f"rank_{self._rank}": self._number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._number = state[f"rank_{self._rank}"]


def load(*, dp_world_size: int, dp_rank: int, tokenizer: object, job_config: Any) -> Tokens:
    return Tokens(job_config, dp_rank)


tiny = TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=VOCABULARY, multiple_of=16, max_seq_len=64)
specs.register_train_spec(
    "synthetic",
    dataclasses.replace(
        get_train_spec(),
        model_args={"tiny": tiny},
        build_dataloader_fn=load,
        build_tokenizer_fn=None,
        build_validator_fn=None,
    ),
)
