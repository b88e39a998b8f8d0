"""Model recipes: functions that return complete model configurations; FLOPs per token of a model.

The names are those of the published sizes with their own vocabularies. The default vocabulary is the 256 bytes, so
`gpt:124m` has 85M parameters; `--vocab_size 50304` gives the published size.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

from muster_components.trainer.errors import InputError

BYTE_VOCAB: Final = 256

Style = Literal["modern", "gpt2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a decoder-only transformer.

    `style` "modern" is RMSNorm, rotary positions and SwiGLU without biases; "gpt2" is LayerNorm, learned positions and
    GELU with biases. `hidden` is the width of the feed-forward layer. `kv_heads` < `heads` shares keys and values among
    groups of heads. `bias`: of linear layers and norms. `tied`: the head uses the embedding's matrix. `dropout`: the
    probability, of attention, both residual branches and the embedding. `lr` is the peak learning rate that suits the
    shape.
    """

    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    hidden: int
    vocab_size: int = BYTE_VOCAB
    style: Style = "modern"
    bias: bool = False
    tied: bool = False
    dropout: float = 0.0
    rope_theta: float = 10_000.0
    lr: float = 6e-4

    def __post_init__(self) -> None:
        for field in ("layers", "dim", "heads", "kv_heads", "hidden", "rope_theta"):
            if getattr(self, field) <= 0:
                raise InputError(f"{self.name}: {field} must be above 0; got {getattr(self, field)}")
        if self.dim % self.heads:
            raise InputError(f"{self.name}: dim must be a multiple of heads ({self.heads}); got {self.dim}")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.name}: heads must be a multiple of kv_heads ({self.kv_heads}); got {self.heads}")
        if self.style == "modern" and self.head_dim % 2:
            raise InputError(f"{self.name}: dim / heads must be even for rotary positions; got {self.head_dim}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"{self.name}: dropout must be at least 0 and below 1; got {self.dropout}")
        if self.style not in get_args(Style):
            raise InputError(f"{self.name}: style must be {' or '.join(get_args(Style))}; got {self.style!r}")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def require_divisible(self, tp: int) -> None:
        """Raises InputError if tensor parallelism over `tp` ranks cannot split the model."""
        parts = {
            "key-value heads": self.kv_heads,
            "feed-forward columns": self.hidden,
            "tokens in the vocabulary": self.vocab_size,
        }
        for name, size in parts.items():
            if size % tp:
                raise InputError(f"--parallel tp={tp} requires a multiple of {tp} {name}; {self.name} has {size}")
        if tp > 1 and self.dropout:
            raise InputError(f"--parallel tp={tp} requires a model without dropout; {self.name} has {self.dropout}")

    def architecture(self) -> dict[str, object]:
        """What determines names, shapes and order of rows of parameters, which must match a checkpoint."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in ("name", "lr", "dropout")}
        return {**fields, "qkv_rows": "by key-value head"}


def gpt_1m() -> ModelConfig:
    """0.9M parameters: for tests, and to learn the commands."""
    return ModelConfig(name="gpt:1m", layers=4, dim=128, heads=4, kv_heads=4, hidden=344, lr=2e-3)


def gpt_10m() -> ModelConfig:
    """10.8M parameters: trains for a minute on two CPU cores to produce text-like output."""
    return ModelConfig(name="gpt:10m", layers=6, dim=384, heads=6, kv_heads=6, hidden=1024, lr=1e-3)


def gpt_124m() -> ModelConfig:
    """The shape of GPT-2 small in modern form."""
    return ModelConfig(name="gpt:124m", layers=12, dim=768, heads=12, kv_heads=12, hidden=2048)


def gpt2_124m() -> ModelConfig:
    """GPT-2 small: LayerNorm, learned positions, GELU, biases, head and embedding tied."""
    return dataclasses.replace(gpt_124m(), name="gpt2:124m", hidden=3072, style="gpt2", bias=True, tied=True)


def nanogpt_124m() -> ModelConfig:
    """GPT-2 small as nanoGPT trains it: without biases."""
    return dataclasses.replace(gpt2_124m(), name="nanogpt:124m", bias=False)


def nanogpt_10m() -> ModelConfig:
    """nanoGPT's character model (10.65M parameters with 65 characters): without biases, dropout 0.2."""
    shape = dataclasses.replace(gpt_10m(), name="nanogpt:10m", hidden=1536, style="gpt2", tied=True)
    return dataclasses.replace(shape, dropout=0.2)


def gpt_350m() -> ModelConfig:
    """The shape of GPT-2 medium in modern form."""
    return ModelConfig(name="gpt:350m", layers=24, dim=1024, heads=16, kv_heads=16, hidden=2752, lr=3e-4)


def gpt_1b() -> ModelConfig:
    """1.0B parameters, 20 layers of 2048."""
    return ModelConfig(name="gpt:1b", layers=20, dim=2048, heads=16, kv_heads=16, hidden=5632, lr=2e-4)


def llama_8b() -> ModelConfig:
    """Llama 3 8B: grouped-query attention with 8 key-value heads; `--vocab_size 128256` gives the published size."""
    return ModelConfig(
        name="llama:8b", layers=32, dim=4096, heads=32, kv_heads=8, hidden=14_336, rope_theta=500_000.0, lr=3e-4
    )


_FUNCTIONS: Final = (
    gpt_1m,
    gpt_10m,
    gpt_124m,
    gpt2_124m,
    nanogpt_124m,
    nanogpt_10m,
    gpt_350m,
    gpt_1b,
    llama_8b,
)

RECIPES: Final[Mapping[str, Callable[[], ModelConfig]]] = MappingProxyType(
    {recipe().name: recipe for recipe in _FUNCTIONS}
)


def model_config(name: str, *, vocab_size: int | None = None) -> ModelConfig:
    """The recipe called `name`, with another vocabulary if one is given. Raises InputError with the nearest name."""
    if name not in RECIPES:
        near = difflib.get_close_matches(name.lower(), RECIPES, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        valid = f"Recipes: {', '.join(RECIPES)}; other models: hf:TYPE, hf:FOLDER, my.module:factory"
        raise InputError(f"--model must be a recipe; got {name!r}{hint or '.'} {valid}")
    config = RECIPES[name]()
    if vocab_size is None:
        return config
    if vocab_size < BYTE_VOCAB:
        raise InputError(f"--vocab_size must be at least {BYTE_VOCAB} (tokens are bytes); got {vocab_size}")
    return dataclasses.replace(config, vocab_size=vocab_size)


PEAK_BF16_FLOPS: Final[tuple[tuple[str, float], ...]] = (
    ("GB200", 2500e12),
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H20", 148e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("GH200", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
)
"""Dense bf16 peak by a part of the device's name, more specific names first (from vendors' data sheets)."""


def matmul_parameters(model: ModelConfig) -> int:
    """Parameters that multiply every token: all matrices and the head, without the embedding (a lookup)."""
    query_and_out = 2 * model.dim * model.dim
    key_and_value = 2 * model.dim * model.kv_heads * model.head_dim
    feed_forward = (3 if model.style == "modern" else 2) * model.dim * model.hidden
    head = model.dim * model.vocab_size
    return model.layers * (query_and_out + key_and_value + feed_forward) + head


def flops_per_token(model: ModelConfig, seq_len: int) -> int:
    """Forward and backward FLOPs of the model for one token in a sequence of `seq_len`.

    By the PaLM paper (appendix B), as in TorchTitan and nanoGPT: 6 FLOPs for each parameter that multiplies the token
    in forward and backward, plus 12 x layers x dim x sequence length for attention, without the causal mask. Recomputed
    activations do not count.
    """
    return 6 * matmul_parameters(model) + 12 * model.layers * model.dim * seq_len


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a device by its name; None if unknown (all CPUs)."""
    name = device_name.upper()
    return next((peak for part, peak in PEAK_BF16_FLOPS if part.upper() in name), None)


def mfu(flops: int | None, seconds: float, peak_per_device: float | None, devices: int) -> float | None:
    """The FLOP/s of a step of `seconds` divided by the peak of all `devices`, 0 to 1; None if anything is unknown."""
    if flops is None or peak_per_device is None:
        return None
    return flops / (seconds * peak_per_device * devices)
