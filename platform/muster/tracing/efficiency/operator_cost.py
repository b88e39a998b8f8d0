"""What operators have to compute and to move, from the shapes of their inputs.

A matrix product of M x K and K x N is 2 M N K operations. Bytes are those of each input read once and of the output
written once, as if caches were perfect: of element-wise operators the output is as large as the largest input.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.tracing.read.operator_shapes import KNOWN_OPERATORS, OperatorShape, ShapedTensor


class OperatorKind(StrEnum):
    """What an operator does."""

    MATRIX_PRODUCT = "matrix product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    ELEMENT_WISE = "element-wise"
    REDUCTION = "reduction"


@dataclass(frozen=True, slots=True)
class OperatorCost:
    """Of one call: operations (0 where memory alone counts), bytes, the type of the numbers; `sizes` to show, and the
    sizes that decide how memory is aligned: those of a matrix product."""

    kind: OperatorKind
    flops: float
    bytes: float
    dtype: str
    sizes: str
    aligned: tuple[int, ...] = ()


# Where the two factors are among the inputs.
_MATRIX_PRODUCTS: Final = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "_scaled_mm": 0}
# Where the operator says whether it is causal.
_ATTENTION: Final = {
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_flash_attention_for_cpu": 4,
}
_ATTENTION_BACKWARD: Final = {
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
}
# Where the padding is; stride and dilation follow.
_CONVOLUTIONS: Final = {"cudnn_convolution": 2, "miopen_convolution": 3, "mkldnn_convolution": 3}
_CONVOLUTION_BACKWARD: Final = "convolution_backward"
MATH_ATTENTION: Final = "aten::_scaled_dot_product_attention_math"
"""Attention as separate matrix products and a softmax."""
_REDUCTIONS: Final = frozenset(("sum", "mean", "amax", "var_mean", "linalg_vector_norm", "argmax"))
"""Their output is small."""
_COPIES: Final = frozenset(("copy_",))
"""Their output is among the inputs."""
_FILLS: Final = frozenset(("fill_", "zero_"))

_DTYPE_BYTES: Final = {
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::BFloat16", "c10::Half", "short"), 2),
}
DTYPE_NAMES: Final = {"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16"}


def operator_cost(shape: OperatorShape) -> OperatorCost | None:
    """The cost of one call; None if it cannot be derived from what was recorded."""
    name, tensors = shape.operator.removeprefix("aten::"), shape.tensors
    known = [tensor for tensor in tensors if tensor is not None]
    if not known or shape.operator not in KNOWN_OPERATORS:
        return None
    if name in _MATRIX_PRODUCTS:
        return _matrix_product(tensors[_MATRIX_PRODUCTS[name] :][:2])
    if name in _ATTENTION:
        return _attention(tensors[:3], _is_true(shape.values, _ATTENTION[name]), backward=False)
    if name in _ATTENTION_BACKWARD:
        return _attention(tensors[1:4], _is_true(shape.values, _ATTENTION_BACKWARD[name]), backward=True)
    if name in _CONVOLUTIONS:
        return _convolution(tensors[:2], shape.values[_CONVOLUTIONS[name] :][:3])
    if name == _CONVOLUTION_BACKWARD:
        return _convolution_backward(tensors[:3])
    return _by_memory(name, known)


def _is_true(values: Sequence[str], at: int) -> bool:
    return len(values) > at and values[at] == "True"


def _matrix_product(factors: Sequence[ShapedTensor | None]) -> OperatorCost | None:
    match factors:
        case [ShapedTensor(sizes=(*batch, m, k), dtype=dtype), ShapedTensor(sizes=(*other, rows, n))] if (
            rows == k and batch == other
        ):
            count = math.prod(batch)
            moved = count * (m * k + k * n + m * n) * _bytes_of(dtype)
            sizes = f"{f'{count} x ' if batch else ''}({m} x {k}) ({k} x {n})"
            flops = 2 * count * m * n * k
            return OperatorCost(OperatorKind.MATRIX_PRODUCT, flops, moved, dtype, sizes, (m, k, n))
    return None


def _attention(inputs: Sequence[ShapedTensor | None], causal: bool, *, backward: bool) -> OperatorCost | None:
    match inputs:
        case [
            ShapedTensor(sizes=(batch, heads, queries, width), dtype=dtype) as q,
            ShapedTensor(sizes=(_, _, keys, _)) as k,
            ShapedTensor() as v,
        ]:
            products = 4 * batch * heads * queries * keys * width * (0.5 if causal and queries == keys else 1.0)
            read = _size(q) + _size(k) + _size(v)
            moved = 2 * read + 2 * _size(q) if backward else read + _size(q)
            sizes = f"{batch} x {heads} x {queries} x {width}{', causal' if causal else ''}"
            return OperatorCost(
                OperatorKind.ATTENTION, products * (2.5 if backward else 1), moved * _bytes_of(dtype), dtype, sizes
            )
    return None


def _convolution(inputs: Sequence[ShapedTensor | None], how: Sequence[str]) -> OperatorCost | None:
    padding, stride, dilation = (
        [int(number) for number in re.findall(r"\d+", text)] for text in (*how, "", "", "")[:3]
    )
    match inputs:
        case [
            ShapedTensor(sizes=(batch, _, *spatial)) as image,
            ShapedTensor(sizes=(channels, of_group, *window)) as weight,
        ] if len(spatial) == len(window) == len(padding) == len(stride) == len(dilation) and 0 not in stride:
            out = [
                (size + 2 * pad - wide * (width - 1) - 1) // step + 1
                for size, pad, step, wide, width in zip(spatial, padding, stride, dilation, window, strict=True)
            ]
            return _convolved(image, weight, batch * channels * math.prod(out), of_group * math.prod(window), 1)
    return None


def _convolution_backward(inputs: Sequence[ShapedTensor | None]) -> OperatorCost | None:
    match inputs:
        case [
            ShapedTensor() as gradient,
            ShapedTensor() as image,
            ShapedTensor(sizes=(_, of_group, *window)) as weight,
        ]:
            return _convolved(image, weight, _size(gradient), of_group * math.prod(window), 2)
    return None


def _convolved(image: ShapedTensor, weight: ShapedTensor, outputs: int, each: int, times: int) -> OperatorCost:
    """`times`: of a backward pass, which computes the gradients of both inputs, 2."""
    moved = times * (_size(image) + _size(weight) + outputs) * _bytes_of(image.dtype)
    sizes = f"{_text(image)}, {_text(weight)}"
    return OperatorCost(OperatorKind.CONVOLUTION, times * 2 * outputs * each, moved, image.dtype, sizes)


def _by_memory(name: str, tensors: Sequence[ShapedTensor]) -> OperatorCost:
    largest = max(tensors, key=_size)
    read = sum(_size(tensor) * _bytes_of(tensor.dtype) for tensor in tensors)
    if name in _FILLS:
        kind, moved = OperatorKind.ELEMENT_WISE, _size(largest) * _bytes_of(largest.dtype)
    elif name in _REDUCTIONS:
        kind, moved = OperatorKind.REDUCTION, read
    elif name in _COPIES:
        kind, moved = OperatorKind.ELEMENT_WISE, read
    else:
        kind, moved = OperatorKind.ELEMENT_WISE, read + _size(largest) * _bytes_of(largest.dtype)
    return OperatorCost(kind, 0, moved, largest.dtype, _text(largest))


def _size(tensor: ShapedTensor) -> int:
    return math.prod(tensor.sizes)


def _bytes_of(dtype: str) -> int:
    return _DTYPE_BYTES.get(dtype, 1)


def _text(tensor: ShapedTensor) -> str:
    return " x ".join(map(str, tensor.sizes)) or "scalar"


def dtype_name(dtype: str, names: Mapping[str, str] = DTYPE_NAMES) -> str:
    """`bfloat16` of `c10::BFloat16`."""
    return names.get(dtype, dtype.removeprefix("c10::").lower())
