"""A decoder-only transformer, from a ModelConfig.

Names of tensors end with their dimensions: B batch, L position, D model width, N query heads, K key-value heads,
H head width, F feed-forward width, V vocabulary.

The head also computes the loss: the float32 logits (B x L x V) are the largest tensor of a step, and are never stored
as a whole if projection and cross-entropy are compiled together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from muster_components.trainer.compilation.backends import Backend
from muster_components.trainer.data.samples import Arrays, SampleSpec
from muster_components.trainer.models.interface import Batch
from muster_components.trainer.models.recipes import ModelConfig, flops_per_token
from muster_components.trainer.parallel.call_graph import find_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from muster_components.trainer.models.safetensors_save import Gather

IGNORE_INDEX = -1
"""The target of positions without loss."""


class Attention(nn.Module):
    """Causal self-attention; groups of query heads share a key-value head where `kv_heads` < `heads`.

    The rows of `qkv` are ordered by key-value head: the query heads of its group, the key, the value. So any equal
    split of the rows among at most `kv_heads` ranks gives each complete groups, and one matrix product suffices.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.group, self.head_dim = config.heads // config.kv_heads, config.head_dim
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.dim, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=config.bias)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=config.bias)

    def forward(self, x_BLD: Tensor, rope_LH: Tensor | None) -> Tensor:
        """Each position attends to itself and to earlier positions."""
        groups = self.qkv(x_BLD).unflatten(-1, (-1, self.group + 2, self.head_dim))
        q_BNLH, k_BKLH, v_BKLH = (
            part.flatten(2, 3).transpose(1, 2) for part in groups.split((self.group, 1, 1), dim=3)
        )
        if rope_LH is not None:
            q_BNLH, k_BKLH = apply_rotary_emb(q_BNLH, rope_LH), apply_rotary_emb(k_BKLH, rope_LH)
        y_BNLH = F.scaled_dot_product_attention(
            q_BNLH,
            k_BKLH,
            v_BKLH,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.group > 1,
        )
        return self.out(y_BNLH.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020) in modern style, GELU in GPT-2's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # Two matrices: the gradients of one would have to be concatenated, which costs more than a second product.
        self.gate = nn.Linear(config.dim, config.hidden, bias=False) if config.style == "modern" else None
        self.up = nn.Linear(config.dim, config.hidden, bias=config.bias)
        self.down = nn.Linear(config.hidden, config.dim, bias=config.bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Applied to each position independently."""
        h_BLF = self.up(x_BLD)
        h_BLF = gelu(h_BLF) if self.gate is None else F.silu(self.gate(x_BLD)) * h_BLF
        return self.down(h_BLF)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual connection.

    All blocks have the same structure, so that they share one compiled graph.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(config)
        self.attention = Attention(config)
        self.feed_forward_norm = build_norm(config)
        self.feed_forward = FeedForward(config)
        self.dropout = config.dropout

    def forward(self, x_BLD: Tensor, rope_LH: Tensor | None, dropout_key_SB: Tensor | None) -> Tensor:
        """One layer; the two keys are those of its two places with dropout."""
        attended_BLD = self.attention(self.attention_norm(x_BLD), rope_LH)
        if dropout_key_SB is not None and self.training:
            attended_BLD = dropout(attended_BLD, self.dropout, dropout_key_SB[0])
        x_BLD = x_BLD + attended_BLD
        transformed_BLD: Tensor = self.feed_forward(self.feed_forward_norm(x_BLD))
        if dropout_key_SB is not None and self.training:
            transformed_BLD = dropout(transformed_BLD, self.dropout, dropout_key_SB[1])
        return x_BLD + transformed_BLD


class Head(nn.Module):
    """Hidden states and targets to the summed cross-entropy, without targets of IGNORE_INDEX."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = build_norm(config)
        self.out = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, x_BLD: Tensor, target_BL: Tensor) -> Tensor:
        """Sum of the losses in nats, in float32."""
        logits_BLV = self.out(self.norm(x_BLD)).float()
        return F.cross_entropy(
            logits_BLV.flatten(0, 1), target_BL.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
        )


class Transformer(nn.Module):
    """The whole model. Create it on the meta device, then call `init_weights`."""

    rope_LH: Tensor | None

    def __init__(self, config: ModelConfig, seq_len: int) -> None:
        super().__init__()
        self.config = config
        self.seq_len = seq_len
        self.embed = nn.Embedding(config.vocab_size, config.dim)
        self.positions = nn.Embedding(seq_len, config.dim) if config.style == "gpt2" else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        # Its values are set with the weights; its shape is needed to run the model without values.
        rope_LH = torch.empty(seq_len, config.head_dim) if config.style == "modern" else None
        self.register_buffer("rope_LH", rope_LH, persistent=False)
        self.fused_loss = False
        self.tie_weights()

    def tie_weights(self) -> None:
        """Use the embedding as the head's matrix if the configuration says so. Needed again after `to_empty`."""
        if self.config.tied:
            self.head.out.weight = self.embed.weight

    def forward(self, token_BL: Tensor, target_BL: Tensor, number_B: Tensor | None = None) -> Tensor:
        """Summed loss of predicting `target_BL` (IGNORE_INDEX: no loss) after each of `token_BL`.

        `number_B`: int32, chooses what dropout drops; required if the configuration has dropout.
        """
        x_BLD = self.states(token_BL, number_B)
        if not self.fused_loss:
            return self.head(x_BLD, target_BL)  # type: ignore[no-any-return]
        # Imported where it is used: Triton exists for Linux only.
        from muster_components.trainer.kernels.cross_entropy import linear_cross_entropy

        return linear_cross_entropy(x_BLD.flatten(0, 1), self.head.out.weight, target_BL.flatten())

    def states(self, token_BL: Tensor, number_B: Tensor | None) -> Tensor:
        """The input of the head; with `fused_loss` after the head's norm."""
        x_BLD: Tensor = self.embed(token_BL)
        if self.positions is not None:
            x_BLD = x_BLD + self.positions(torch.arange(token_BL.shape[1], device=token_BL.device))
        key_SB = None if number_B is None else dropout_keys(number_B, 2 * len(self.blocks) + 1)
        if key_SB is not None and self.training:
            x_BLD = dropout(x_BLD, self.config.dropout, key_SB[-1])
        for i, block in enumerate(self.blocks):
            x_BLD = block(x_BLD, self.rope_LH, None if key_SB is None else key_SB[2 * i : 2 * i + 2])
        return self.head.norm(x_BLD) if self.fused_loss else x_BLD


def gelu(x: Tensor) -> Tensor:
    """GELU by the tanh approximation (Hendrycks and Gimpel, 2016), computed in float32.

    Written with a sigmoid, since (1 + tanh(z)) / 2 = sigmoid(2z): Inductor's sigmoid takes few instructions, its tanh
    so many that the kernel is bound by them and not by memory (0.34 instead of 0.20 ms for 65,536 x 3,072 on an H200).
    Without compilation each operation would be a kernel of its own, so then it is PyTorch's.
    """
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = x.float()
    return (wide * torch.sigmoid(1.5957691216057308 * (wide + 0.044715 * wide * wide * wide))).type_as(x)


def dropout_keys(number_B: Tensor, places: int) -> Tensor:
    """Keys (places, B), int32, of `dropout`: another one for each sample and each place in the model."""
    place_S = torch.arange(1, places + 1, device=number_B.device, dtype=torch.int32) * 668_265_261
    return number_B * 374_761_393 + place_S[:, None]


def dropout(x_BLD: Tensor, rate: float, key_B: Tensor) -> Tensor:
    """Zero each element with probability `rate`, and scale the others by 1 / (1 - rate).

    What is dropped is a hash of the sample's key and the element's position (the finalizer of MurmurHash3): the same
    for any number of ranks, after a restart, and when activations are recomputed. Its few integer instructions cost
    less than Inductor's Philox generator, which computes four random numbers to use one.
    """
    _, length, width = x_BLD.shape
    element_LD = torch.arange(length * width, device=x_BLD.device, dtype=torch.int32).view(length, width)
    # Combined with the key first: Inductor would fold factors of a mere position into constants beyond 32 bits.
    h_BLD = (element_LD ^ key_B[:, None, None]) * -1_640_531_527
    h_BLD = (h_BLD ^ ((h_BLD >> 16) & 0xFFFF)) * -2_048_144_789
    h_BLD = (h_BLD ^ ((h_BLD >> 13) & 0x7FFFF)) * -1_028_477_387
    h_BLD = h_BLD ^ ((h_BLD >> 16) & 0xFFFF)
    kept_BLD = h_BLD >= round(rate * 2**32) - 2**31
    return torch.where(kept_BLD, x_BLD * (1 / (1 - rate)), 0.0)


def build_norm(config: ModelConfig) -> nn.Module:
    """RMSNorm or LayerNorm, by style."""
    if config.style == "modern":
        return nn.RMSNorm(config.dim, eps=1e-5)
    return nn.LayerNorm(config.dim, eps=1e-5, bias=config.bias)


def rope_table(seq_len: int, head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Cosines, then sines, of the rotary angles: shape (L, H), half of H each, float32 (Su et al., 2021)."""
    frequency_h = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle_Lh = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequency_h)
    return torch.cat((angle_Lh.cos(), angle_Lh.sin()), dim=-1)


def apply_rotary_emb(x_BNLH: Tensor, rope_LH: Tensor) -> Tensor:
    """Rotate each pair (i, i + H/2) by its position's angle, computed in float32 for any dtype of `x_BNLH`."""
    cos_Lh, sin_Lh = rope_LH.chunk(2, dim=-1)
    a_BNLh, b_BNLh = x_BNLH.float().chunk(2, dim=-1)
    rotated = torch.cat((a_BNLh * cos_Lh - b_BNLh * sin_Lh, a_BNLh * sin_Lh + b_BNLh * cos_Lh), dim=-1)
    return rotated.type_as(x_BNLH)


@torch.no_grad()
def init_weights(model: Transformer, device: torch.device, seed: int) -> None:
    """Create the initial weights of a model on the meta device, sharded or not.

    One parameter at a time is drawn as a whole from a generator seeded by (seed, name), and this rank's shard is kept.
    So the weights are the same for any world size, and no rank ever stores the whole model.
    """
    model.to_empty(device=device)
    model.tie_weights()
    if model.config.style == "modern":
        model.rope_LH = rope_table(model.seq_len, model.config.head_dim, model.config.rope_theta, device)
    for name, parameter in model.named_parameters():
        whole = torch.empty(parameter.shape, device=device, dtype=parameter.dtype)
        _init_parameter(name, whole, model.config.layers, seed)
        if isinstance(parameter, DTensor):
            # src_data_rank=None: all ranks drew the same values, so none are sent.
            shard = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
            parameter.to_local().copy_(shard.to_local())
        else:
            parameter.copy_(whole)


def _init_parameter(name: str, tensor: Tensor, layers: int, seed: int) -> None:
    """Initial values as in GPT-2: N(0, 0.02), less for the 2 x layers projections added to the residual stream."""
    if name.endswith("bias"):
        tensor.zero_()
    elif "norm" in name:
        tensor.fill_(1.0)
    else:
        number = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7]
        generator = torch.Generator(device=tensor.device).manual_seed(int.from_bytes(number, "big"))
        adds_to_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
        tensor.normal_(std=0.02 / math.sqrt(2 * layers) if adds_to_residual else 0.02, generator=generator)


class RecipeModel:
    """A recipe as a TrainModel; its samples are windows of `seq_len` + 1 tokens."""

    def __init__(self, config: ModelConfig, seq_len: int) -> None:
        self.config = config
        self._seq_len = seq_len
        self.name = config.name
        self.summary = f"{config.layers} layers x {config.dim}, vocabulary {config.vocab_size}"
        self.targets: frozenset[str] = frozenset()
        self.sample_spec = SampleSpec("next_token", seq_len, seq_len, config.vocab_size)

    def build(self) -> Transformer:
        return Transformer(self.config, self._seq_len)

    def blocks(self, module: nn.Module) -> Sequence[nn.Module]:
        return list(find_blocks(module).values())

    def compiled_modules(self, module: nn.Module) -> Sequence[nn.Module]:
        return [*self.blocks(module), *(child for child in module.children() if isinstance(child, Head))]

    def compile_whole(self, module: nn.Module, backend: Backend) -> None:
        """All layers in one graph, the loss by its own kernel."""
        assert isinstance(module, Transformer)
        compiled = torch.compile(module.states, fullgraph=True, dynamic=False, backend=backend)
        module.states = compiled  # type: ignore[method-assign]
        module.fused_loss = True

    def initialize(self, module: nn.Module, device: torch.device, seed: int) -> None:
        assert isinstance(module, Transformer)
        init_weights(module, device, seed)

    def collate(self, samples: Arrays, number_B: NDArray[np.int64], seed: int) -> Arrays:
        """Each token's target is the next one; padding has IGNORE_INDEX as targets."""
        tokens = samples["tokens"]
        arrays = {"token_BL": np.maximum(tokens[:, :-1], 0), "target_BL": np.ascontiguousarray(tokens[:, 1:])}
        if self.config.dropout:
            arrays["number_B"] = (number_B * 2_654_435_761 + seed).astype(np.uint32).view(np.int32)
        return arrays

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The head has computed it."""
        return output

    def flops_per_sample(self) -> int:
        return self._seq_len * flops_per_token(self.config, self._seq_len)

    def save(self, module: nn.Module, folder: Path, *, gather: Gather | None = None) -> None:
        """Save `module`, sharded or not, so that `from_pretrained` of Transformers opens it. Every rank calls it.

        `gather`: as in `save_weights`. Raises InputError for a recipe that Transformers has no class for, TrainerError
        if rank 0 cannot write.
        """
        # Imported here: both need the extra `hf`, which training a recipe does not.
        from muster_components.trainer.models.recipe_huggingface import huggingface_config, to_huggingface
        from muster_components.trainer.models.safetensors_save import save_weights

        text = json.dumps(huggingface_config(self.config, self._seq_len), indent=2) + "\n"

        def write_config(target: Path) -> None:
            (target / "config.json").write_text(text)

        save_weights(
            module,
            folder,
            gather=gather,
            rename=lambda tensors: to_huggingface(self.config, tensors),
            write_config=write_config,
        )

    def architecture(self) -> dict[str, object]:
        return self.config.architecture()
