"""Kernels by precision and mode."""

from __future__ import annotations

from pathlib import Path

import pytest

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
