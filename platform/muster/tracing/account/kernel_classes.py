"""What computes: the class of a kernel by its name."""

from __future__ import annotations

import re

import numpy as np

from muster.tracing.read.events import Events, Trace
from muster.tracing.read.spans import Int64

_CLASSES = (
    ("attention", r"flash|fmha|attention|sdpa"),
    ("convolutions", r"conv(?!ert)|fprop|dgrad|wgrad|winograd|im2col"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|cijk_|splitk|dot_kernel|triton_tem|triton_mm"),
    ("kernels of Triton", r"triton"),
    ("normalisation", r"norm|gammabeta"),
    ("foreach operators", r"multi_tensor|foreach|adam"),
    ("reductions", r"reduce|softmax|scan|cumsum|nll_loss"),
    ("elementwise", r"elementwise|copy_kernel|fillfunctor"),
    ("other kernels", r""),
)
KERNEL_CLASSES = tuple(name for name, _ in _CLASSES)
"""Of kernels that run at once, the first class counts."""
_PATTERNS = tuple(re.compile(pattern, re.IGNORECASE) for _, pattern in _CLASSES)


def kernel_class(name: str) -> int:
    """The position of a kernel's class in `KERNEL_CLASSES`: the first one whose pattern its name has."""
    return next(i for i, pattern in enumerate(_PATTERNS) if pattern.search(name))


def kernel_classes(trace: Trace, kernels: Events) -> Int64:
    """The class of each kernel."""
    codes, position = np.unique(kernels.name, return_inverse=True)
    return np.array([kernel_class(trace.names[code]) for code in codes.tolist()], dtype=np.int64)[position]
