"""FLOPs per token, and model FLOPs utilisation (MFU).

By the PaLM paper (appendix B), as in TorchTitan and nanoGPT: 6 FLOPs for each parameter that multiplies the token in
forward and backward, plus 12 x layers x dim x sequence length for attention, without the causal mask. Recomputed
activations do not count.
"""

from __future__ import annotations

from typing import Final

from muster_components.trainer.recipes import ModelConfig

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
    """Forward and backward FLOPs of the model for one token in a sequence of `seq_len`."""
    return 6 * matmul_parameters(model) + 12 * model.layers * model.dim * seq_len


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 FLOP/s of a device by its name; None if unknown (all CPUs)."""
    name = device_name.upper()
    return next((peak for part, peak in PEAK_BF16_FLOPS if part.upper() in name), None)


def mfu(tokens_per_s: float, token_flops: int, peak_per_device: float | None, devices: int) -> float | None:
    """The model's FLOP/s divided by the peak of all `devices`, 0 to 1; None if the peak is unknown."""
    if peak_per_device is None:
        return None
    return tokens_per_s * token_flops / (peak_per_device * devices)
