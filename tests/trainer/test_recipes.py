"""FLOPs per token, compared with published numbers."""

from __future__ import annotations

import pytest

from muster_components.trainer.models.recipes import flops_per_token, mfu, model_config, peak_flops


def test_flops_of_llama_8b_equal_torchtitans() -> None:
    """57.9 GFLOP per token at 8,192 tokens with Llama 3's vocabulary."""
    cost = flops_per_token(model_config("llama:8b", vocab_size=128_256), 8192)
    assert cost / 1e9 == pytest.approx(57.9, abs=0.05)


def test_flops_of_gpt2_small_equal_nanogpts() -> None:
    """nanoGPT: 6 x 123.6M (the tied embedding counts as the head) + 12 x 12 x 768 x 1024."""
    cost = flops_per_token(model_config("gpt2:124m", vocab_size=50_304), 1024)
    assert cost == pytest.approx(6 * 123.6e6 + 12 * 12 * 768 * 1024, rel=0.002)


def test_peaks_are_found_by_device_name() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-40GB") == 312e12
    assert peak_flops("NVIDIA L40") == 181e12
    assert peak_flops("AMD EPYC 9554") is None


def test_mfu_is_relative_to_all_devices_and_unknown_without_flops_or_a_peak() -> None:
    assert mfu(10**12, 1.0, 2e12, 2) == pytest.approx(0.25)
    assert mfu(10**12, 1.0, None, 2) is None
    assert mfu(None, 1.0, 2e12, 2) is None
