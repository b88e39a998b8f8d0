"""Kernels by precision and mode."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # imports torch

SELECT = """
import torch
from muster_components.trainer.device import select_kernels
for deterministic in (False, True):
    with select_kernels(torch.device("cpu"), "fp32", deterministic=deterministic):
        assert torch.are_deterministic_algorithms_enabled() == deterministic
"""


def test_deterministic_mode_is_torchs() -> None:
    subprocess.run([sys.executable, "-c", SELECT], check=True)
