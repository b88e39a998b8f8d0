"""Kernels by precision and mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from muster_components.trainer.device import select_kernels

from .conftest import Starter

pytestmark = pytest.mark.slow  # imports torch

SELECT = """
import torch
from muster_components.trainer.device import select_kernels
for deterministic in (False, True):
    with select_kernels(torch.device("cpu"), "fp32", deterministic=deterministic):
        assert torch.are_deterministic_algorithms_enabled() == deterministic
"""


def test_deterministic_mode_is_torchs(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "selected.py").write_text(SELECT)
    ranks = start(1, module="selected")
    assert ranks.end() == [0], ranks.log_text()


@pytest.mark.parametrize(
    ("capability", "first", "others"),
    [
        ((9, 0), "CUDNN_ATTENTION", {"FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"}),
        ((8, 0), "FLASH_ATTENTION", {"EFFICIENT_ATTENTION", "MATH"}),
    ],
)
def test_attention_is_cudnns_on_hopper_and_newer_and_flash_attention_before(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], first: str, others: set[str]
) -> None:
    chosen: list[tuple[list[str], bool]] = []

    @contextlib.contextmanager
    def noted(backends: list[SDPBackend], *, set_priority: bool) -> Iterator[None]:
        chosen.append(([backend.name for backend in backends], set_priority))
        yield

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("muster_components.trainer.device.sdpa_kernel", noted)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_float32_matmul_precision()
    with select_kernels(torch.device("cuda", 0), "bf16", deterministic=False):
        pass
    torch.set_float32_matmul_precision(before)
    ((names, in_order),) = chosen
    assert (names[0], set(names[1:]), in_order) == (first, others, True)
