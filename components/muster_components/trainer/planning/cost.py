"""What a part of a model costs: operations, memory traffic, and bytes that stay allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

_SATURATING_DIMENSION: Final = 24.0
"""A matrix product whose smallest dimension is n reaches n / (n + 24) of the speed of a large one. Of GPT-2 124M (n =
768) and Llama 8B (n = 4,096) on an H200, both reach 71 to 72% of the peak."""
_HEAD_WIDTH: Final = 440.0
_ALIGNMENT: Final = 8
"""Numbers in bf16 that tensor cores load at once: rows of matrices should begin at multiples of it."""
_UNALIGNED: Final = 3.0
"""The time of a product with rows that do not, beside others: fitted to the head of GPT-2 with 50,257 tokens on an
H200. Inductor pads such matrices, so this holds for code that is not compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a GPU. `traffic`: bytes read and written by all kernels but matrix products and attention.

    FLOPs of matrix products count more where their shapes are small, and half in float8, whose peak is twice that of
    bf16; those of causal attention count without the masked half.
    """

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    traffic: float = 0.0
    kernels: float = 0.0

    def __add__(self, other: Work) -> Work:
        return _combine(self, other, lambda a, b: a + b)

    def scaled(self, factor: float) -> Work:
        """All of it, times `factor`; as many kernels."""
        scaled = _combine(self, self, lambda a, _: a * factor)
        return replace(scaled, kernels=self.kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Forward and backward of a part of the model for one micro-batch; sizes in bytes.

    `retained`: what forward leaves allocated for backward, its output included. `forward_extra` and `backward_extra`:
    the most that is allocated beyond what was before, while forward or backward runs. Backward includes the gradients
    of the part's parameters, in the type that they are computed in. `output`: what is passed to the next part.
    """

    retained: float = 0.0
    forward_extra: float = 0.0
    backward_extra: float = 0.0
    output: float = 0.0
    forward: Work = Work()
    backward: Work = Work()


_T = TypeVar("_T", Work, Cost)


def between(at_low: _T, at_high: _T, low: int, high: int, samples: int) -> _T:
    """The cost of a micro-batch of `samples`, on the line through two others; all quantities are linear in it."""
    share = (samples - low) / (high - low)
    return _combine(at_low, at_high, lambda a, b: max(0.0, a + (b - a) * share))


def _combine(a: _T, b: _T, operation: Callable[[float, float], float]) -> _T:
    values: dict[str, Any] = {}
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        values[field.name] = _combine(x, y, operation) if isinstance(x, Work) else operation(x, y)
    return type(a)(**values)


def tensor_bytes(tree: object) -> int:
    """The bytes of all tensors in a tree, each by its own size."""
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def is_attention(operator: object) -> bool:
    """Whether an operator is fused attention, or its backward."""
    return "scaled_dot_product" in str(operator)


def kernel_work(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any], output: object, *, padded: bool = True
) -> Work | None:
    """The work of a matrix product, a convolution or attention, given tensors without values; None for others.

    `padded`: whether matrices with unaligned rows are padded, as compiled code does.
    """
    if is_attention(operator):
        return Work(attention_flops=_attention_flops(operator, args, kwargs), kernels=1)
    count = flop_registry.get(getattr(operator, "overloadpacket", None) or operator)
    if count is None:
        return None
    flops = float(count(*args, **kwargs, out_val=output))
    operands = args
    if "_scaled_mm" in str(operator):  # float8: the other arguments are scales
        flops, operands = flops / 2, args[:2]
    sizes = [tuple(t.shape) for t in operands if isinstance(t, Tensor) and t.dim() >= 2]
    smallest = min((size for shape in sizes for size in shape[-2:]), default=1)
    if not padded and not all(map(_is_aligned, (*operands, output))):
        flops *= _UNALIGNED
    return Work(matmul_flops=flops * (1 + _SATURATING_DIMENSION / max(1, smallest)), kernels=1)


def _is_aligned(matrix: object) -> bool:
    """Whether all rows (or columns) of a matrix, or of several, begin at multiples of the alignment."""
    if not isinstance(matrix, Tensor) or matrix.dim() not in (2, 3):
        return True
    return max(matrix.stride()[-2:]) % _ALIGNMENT == 0


def memory_work(operator: object, inputs: Sequence[Tensor], output: object) -> Work:
    """The work of a kernel that only reads and writes memory; lookups read as much as they write."""
    written = tensor_bytes(output)
    is_lookup = any(part in str(operator) for part in ("embedding.", "gather", "index_select", "nll_loss_forward"))
    return Work(traffic=written + (written if is_lookup else tensor_bytes(inputs)), kernels=1)


def _attention_flops(operator: object, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """Two products forward, five backward, since it computes the scores again (Dao, FlashAttention-2, 2023)."""
    backward = "backward" in str(operator)
    tensors = [arg for arg in args if isinstance(arg, Tensor) and arg.dim() == 4]
    query, key, value = tensors[1:4] if backward else tensors[:3]
    *batch, length, width = query.shape
    product = 2.0 * math.prod(batch) * length * key.shape[-2]
    causal = any(arg is True for arg in (*args, *kwargs.values()))
    products = (3 * width + 2 * value.shape[-1]) if backward else (width + value.shape[-1])
    # Narrow heads use less of the tensor cores: with 64 instead of 128, GPT-2 124M reaches 56% of the speed on an H200.
    slower = max(1.0, (width + _HEAD_WIDTH) / (128 + _HEAD_WIDTH) * 128 / width)
    return product * products * slower * (0.5 if causal else 1.0)


def is_view(operator: Any) -> bool:
    """Whether the result of an operator shares the memory of its first argument."""
    schema = getattr(operator, "_schema", None)
    if schema is None or not schema.returns:
        return False
    alias = schema.returns[0].alias_info
    return alias is not None and not alias.is_write
