"""Triton kernels equal their references, in Triton's interpreter on CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Triton reads the variable when it is imported, and other tests may have imported it: a process of its own.
CASES = """
import sys, torch
import torch.nn.functional as F
import triton.runtime.interpreter as interpreter
from muster_components.trainer.kernels.cross_entropy import linear_cross_entropy

def reference(hidden, weight, target):
    return F.cross_entropy((hidden @ weight.t()).float(), target, ignore_index=-1, reduction="sum")

# Triton 3.6, that of torch 2.11, takes int() of an array with one element, which NumPy 2.4 refuses.
patch_tensor = interpreter._patch_lang_tensor
def patch_tensor_and_index(tensor, scope):
    patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = patch_tensor_and_index

rows, width, vocabulary, dtype = int(sys.argv[1]), 16, int(sys.argv[2]), getattr(torch, sys.argv[3])
torch.manual_seed(rows)
hidden = torch.randn(rows, width, dtype=dtype) * 3
weight = torch.randn(vocabulary, width, dtype=dtype)
target = torch.randint(vocabulary, (rows,))
target[:: 3] = -1
values = []
for function in (linear_cross_entropy, reference):
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = function(h, w, target)
    (loss * 0.25).backward()
    values.append((loss, h.grad, w.grad))
tolerance = 1e-5 if dtype == torch.float32 else 2e-2
for name, mine, expected in zip(("loss", "hidden", "weight"), *values):
    assert torch.isfinite(mine).all(), name
    error = (mine.float() - expected.float()).norm() / expected.float().norm()
    assert error < tolerance, (name, error)
assert values[0][1][target < 0].abs().max() == 0
if dtype == torch.float32 and rows * vocabulary < 1000:
    # Differences of losses in float32: wide steps, since the loss of seven rows has an error of about 1e-6.
    inputs = tuple(t[:, :4].detach().clone().requires_grad_() for t in (hidden, weight))
    check = lambda h, w: linear_cross_entropy(h, w, target)
    assert torch.autograd.gradcheck(check, inputs, eps=1e-2, atol=5e-3, rtol=1e-2, fast_mode=True)
print("equal")
"""


@pytest.mark.parametrize(
    ("rows", "vocabulary", "dtype"),
    [(7, 65, "float32"), (4, 8192, "float32"), (3, 9001, "float32"), (8, 300, "bfloat16")],
)
def test_linear_cross_entropy_and_its_gradients_equal_pytorchs(
    tmp_path: Path, rows: int, vocabulary: int, dtype: str
) -> None:
    (tmp_path / "case.py").write_text(CASES)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "case.py"), str(rows), str(vocabulary), dtype],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "equal\n", result.stderr[-2000:]
