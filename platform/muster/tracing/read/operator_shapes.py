"""The shapes of the inputs of operators, as the profiler records them with `record_shapes`.

A trace has hundreds of thousands of operators with a few hundred different shapes, so texts are compared, and each one
is decoded once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from muster.tracing.read.spans import Int64

_WITH_VALUES = """
cudnn_convolution miopen_convolution mkldnn_convolution convolution_backward
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward
_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward
_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward
"""
_OTHERS = """
mm addmm bmm baddbmm _scaled_mm copy_ fill_ zero_ sum mean amax var_mean linalg_vector_norm argmax add add_ sub sub_ mul
mul_ div div_ pow sqrt rsqrt exp neg where clamp clamp_min relu threshold_backward gelu gelu_backward silu silu_backward
sigmoid sigmoid_backward tanh tanh_backward native_layer_norm native_layer_norm_backward _fused_rms_norm
_fused_rms_norm_backward native_dropout native_dropout_backward _softmax _softmax_backward_data _log_softmax
_log_softmax_backward_data masked_fill_ addcmul_ addcdiv_ lerp_ cudnn_batch_norm native_batch_norm nan_to_num
"""
WITH_VALUES = frozenset(f"aten::{name}" for name in _WITH_VALUES.split())
"""Operators of which the inputs count that are no tensors."""
KNOWN_OPERATORS = WITH_VALUES | {f"aten::{name}" for name in _OTHERS.split()}
"""Operators that do the work themselves, whose costs the efficiency of operators is derived from."""
MAX_SHAPES = 20_000
MAX_SHAPE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ShapedTensor:
    """Sizes, and the type as the profiler writes it (`c10::BFloat16`)."""

    sizes: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """An operator and its inputs: tensors (None for other inputs), and the values of those that are none as text."""

    operator: str
    tensors: tuple[ShapedTensor | None, ...]
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorShapes:
    """Positions in the trace's events in their order, and of each the position of its shape in `shapes`."""

    event: Int64
    shape: Int64
    shapes: tuple[OperatorShape, ...]


@dataclass(slots=True)
class ShapeColumns:
    """Collects the operators of a trace, in its order."""

    event: array[int] = field(default_factory=lambda: array("q"))
    shape: array[int] = field(default_factory=lambda: array("q"))
    numbers: dict[tuple[str, bytes, bytes, bytes], int] = field(default_factory=dict)

    def add(self, event: int, operator: str, sizes: bytes, types: bytes, values: bytes) -> None:
        """`sizes`, `types` and `values` of an operator's inputs in JSON; without sizes it has no shape."""
        key = operator, sizes, types, values if operator in WITH_VALUES else b""
        number = self.numbers.get(key)
        if number is None:
            if not sizes or len(self.numbers) >= MAX_SHAPES or sum(map(len, key[1:])) > MAX_SHAPE_BYTES:
                return
            number = self.numbers[key] = len(self.numbers)
        self.event.append(event)
        self.shape.append(number)

    def shapes(self) -> OperatorShapes | None:
        """None without any."""
        if not self.event:
            return None
        return OperatorShapes(
            np.array(self.event, dtype=np.int64),
            np.array(self.shape, dtype=np.int64),
            tuple(_decode(operator, *texts) for operator, *texts in self.numbers),
        )


def with_raw_inputs(arguments: dict[str, Any], *, wanted: bool) -> dict[str, Any]:
    """Decoded arguments of an event with those of inputs as texts, as `EventArguments` has them; empty if unwanted."""
    raw = {
        name: msgspec.Raw(msgspec.json.encode(arguments[name]) if wanted else b"")
        for name in ("Concrete Inputs", "Input Dims", "Input type")
        if name in arguments
    }
    return arguments | raw


def input_value(inputs: bytes, at: int) -> Any:
    """One of the values of an operator's inputs, which are a list in JSON; None if it is not there."""
    try:
        return msgspec.json.decode(inputs)[at]
    except (msgspec.DecodeError, RecursionError, TypeError, LookupError):
        return None


def _decode(operator: str, sizes: bytes, types: bytes, values: bytes) -> OperatorShape:
    try:
        dims, dtypes = msgspec.json.decode(sizes), msgspec.json.decode(types or b"[]")
        texts = msgspec.json.decode(values or b"[]")
    except (msgspec.DecodeError, RecursionError):
        return OperatorShape(operator, ())
    if not all(isinstance(column, list) for column in (dims, dtypes, texts)):
        return OperatorShape(operator, ())
    tensors: list[ShapedTensor | None] = []
    for i, size in enumerate(dims):
        dtype = dtypes[i] if i < len(dtypes) else ""
        known = isinstance(dtype, str) and _is_sizes(size) and dtype not in ("", "Scalar", "ScalarList")
        tensors.append(ShapedTensor(tuple(size), dtype) if known else None)
    return OperatorShape(operator, tuple(tensors), tuple(map(str, texts)))


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) and 0 <= size < 1 << 48 for size in value)
