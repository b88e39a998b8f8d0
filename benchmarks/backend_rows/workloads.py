"""The rows of `backends.py`: a model, the flags with which the trainer runs it, its batches and its FLOPs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from benchmarks.backend_rows import models
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from muster_components.trainer.models.recipes import ModelConfig, flops_per_token, model_config
from muster_components.trainer.models.transformer import Transformer, init_weights

BATCHES = 8
"""Different batches, on the device before the first step and used in turn."""
SEED = 0

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row. `trainer_flags`: for the trainer's own path. `build`: the same model with the same weights, on the CPU,
    for loops without the trainer; takes the dropout. `flops` are those of forward and backward of one batch."""

    batch_size: int
    samples: str
    trainer_flags: tuple[str, ...]
    build: Callable[[float], nn.Module]
    make_batch: Callable[[torch.Generator], Batch]
    weight_per_sample: float
    flops: int
    flops_by: str
    recipe: ModelConfig | None = None

    @property
    def dropout(self) -> float:
        """That of the model in the timed steps."""
        return 0.0 if self.recipe is None else self.recipe.dropout

    def batches(self, device: torch.device, dtype: torch.dtype) -> list[Batch]:
        """Random batches, images in `dtype`."""
        generator = torch.Generator().manual_seed(SEED)
        made = [self.make_batch(generator) for _ in range(BATCHES)]
        return [
            {name: tensor.to(device, dtype if tensor.is_floating_point() else None) for name, tensor in batch.items()}
            for batch in made
        ]


def gpt_workload(config: ModelConfig, batch_size: int, seq_len: int) -> Workload:
    """A recipe of nanoGPT's models."""

    def build(dropout: float) -> nn.Module:
        with torch.device("meta"):
            initial = Transformer(config, seq_len)
        # On the device of the trainer, whose generator draws other values than the CPU's.
        init_weights(initial, torch.device("cuda" if torch.cuda.is_available() else "cpu"), SEED)
        plain = models.PlainGPT(config.layers, config.dim, config.heads, config.vocab_size, seq_len, dropout)
        plain.load_state_dict(initial.state_dict())
        return plain

    return Workload(
        batch_size=batch_size,
        samples=f"{batch_size} x {seq_len} tokens",
        trainer_flags=("--model", config.name, "--seq_len", str(seq_len)),
        build=build,
        make_batch=lambda generator: _tokens(generator, batch_size, seq_len, config.vocab_size),
        weight_per_sample=seq_len,
        flops=batch_size * seq_len * flops_per_token(config, seq_len),
        flops_by="6 x parameters of matrix products + 12 x layers x dim x length, for each token (PaLM, appendix B)",
        recipe=config,
    )


def _factory_workload(
    factory: Callable[..., nn.Module],
    args: dict[str, object],
    batch_size: int,
    samples: str,
    make_batch: Callable[[torch.Generator, int], Batch],
) -> Workload:
    """A factory with a batch of `fields`; its FLOPs are counted by torch in a run without values."""

    def build(_dropout: float) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return factory(**args)

    with torch.device("meta"):
        module = factory(**args)
    counter = FlopCounterMode(display=False)
    counted = {name: tensor.to("meta") for name, tensor in make_batch(torch.Generator().manual_seed(SEED), 2).items()}
    with counter:
        module(**counted).backward()
    flags = ("--model", f"{models.__name__}:{factory.__name__}", "--compile")
    model_args = ",".join(f"{name}={value!r}".replace(" ", "") for name, value in args.items())
    return Workload(
        batch_size=batch_size,
        samples=samples,
        trainer_flags=(*flags, "--model_args", model_args),
        build=build,
        make_batch=lambda generator: make_batch(generator, batch_size),
        weight_per_sample=1.0,
        flops=counter.get_total_flops() * batch_size // 2,
        flops_by="torch's FlopCounterMode over forward and backward: matrix products, convolutions and attention",
    )


def vit_workload(batch_size: int, size: int, **args: object) -> Workload:
    """A Vision Transformer."""
    samples = f"{batch_size} x 3 x {size} x {size}"
    return _factory_workload(models.VisionTransformer, {"size": size, **args}, batch_size, samples, _images(size))


def resnet_workload(batch_size: int, size: int, **args: object) -> Workload:
    """A ResNet."""
    samples = f"{batch_size} x 3 x {size} x {size}"
    return _factory_workload(models.resnet, args, batch_size, samples, _images(size))


def lstm_workload(batch_size: int, seq_len: int, *, vocab_size: int, **args: object) -> Workload:
    """A language model of LSTM layers."""
    return _factory_workload(
        models.LstmModel,
        {"vocab_size": vocab_size, **args},
        batch_size,
        f"{batch_size} x {seq_len} tokens",
        lambda generator, size: _tokens(generator, size, seq_len, vocab_size),
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "gpt2": lambda: gpt_workload(model_config("nanogpt:124m", vocab_size=50304), 64, 1024),
    "char": lambda: gpt_workload(model_config("nanogpt:10m"), 64, 256),
    "vit": lambda: vit_workload(64, 224),
    "resnet50": lambda: resnet_workload(64, 224),
    "lstm": lambda: lstm_workload(64, 256, vocab_size=10_000, layers=2, dim=1024),
}

TINY: dict[str, Callable[[], Workload]] = {
    "gpt2": lambda: gpt_workload(dataclasses.replace(_tiny_gpt(), dropout=0.0), 2, 32),
    "char": lambda: gpt_workload(_tiny_gpt(), 2, 16),
    "vit": lambda: vit_workload(2, 32, layers=2, dim=32, heads=2, patch=8, classes=10),
    "resnet50": lambda: resnet_workload(2, 32, depths=(1, 1), width=8, classes=10),
    "lstm": lambda: lstm_workload(2, 8, vocab_size=50, layers=2, dim=16),
}
"""The same rows in sizes for a test on a CPU."""


def _tiny_gpt() -> ModelConfig:
    return dataclasses.replace(model_config("nanogpt:10m"), layers=2, dim=32, heads=2, kv_heads=2, hidden=128)


def _tokens(generator: torch.Generator, batch_size: int, seq_len: int, vocab_size: int) -> Batch:
    """Tokens of which low ones are frequent, so that there is something to learn."""
    uniform = torch.rand(batch_size, seq_len + 1, generator=generator)
    token_BL = (uniform**3 * vocab_size).long().clamp(max=vocab_size - 1)
    return {"token_BL": token_BL[:, :-1].contiguous(), "target_BL": token_BL[:, 1:].contiguous()}


def _images(size: int) -> Callable[[torch.Generator, int], Batch]:
    def make(generator: torch.Generator, count: int) -> Batch:
        image_BHWC = torch.randn(count, size, size, 3, generator=generator)
        return {"image_BHWC": image_BHWC, "label_B": torch.randint(10, (count,), generator=generator)}

    return make
