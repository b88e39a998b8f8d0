"""Advice on the work of a device, from the shapes and kernels of its operators, with what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from muster.tracing.efficiency.device_limits import DeviceLimits, Precision
from muster.tracing.efficiency.operator_cost import OperatorKind
from muster.tracing.efficiency.operator_efficiency import Efficiency, OperatorEfficiency, bound
from muster.tracing.formatting import format_list, format_percent, format_seconds

MIN_SHARE = 0.05
"""Of all compute: less is not worth a change."""
ALIGNMENT, PADDED = 8, 64
SLOW = 0.4  # of the device's limit: aligned products that compute bounds reach more
_PRODUCTS = (OperatorKind.MATRIX_PRODUCT, OperatorKind.CONVOLUTION, OperatorKind.ATTENTION)


@dataclass(frozen=True, slots=True)
class EfficiencyAdvice:
    """`reason` is a short name, `ms` the time of a step that it concerns on the mean rank, `share` that of compute."""

    reason: str
    ms: float
    share: float
    sentence: str


def efficiency_advice(found: Efficiency) -> tuple[EfficiencyAdvice, ...]:
    """What to change, the costliest first; empty on the CPU."""
    if found.device is None:
        return ()
    advice = [*_float32(found), *_unaligned(found), *_math_attention(found)]
    return tuple(sorted(advice, key=lambda one: (-one.ms, one.reason)))


def _advice(found: Efficiency, reason: str, time_ns: int, what: str, advice: str) -> Iterator[EfficiencyAdvice]:
    share = time_ns / found.compute_ns if found.compute_ns else 0.0
    ms = time_ns / 1e6 / found.steps
    if share >= MIN_SHARE:
        cost = f"{format_seconds(ms / 1e3)} a step, {format_percent(share)} of compute"
        yield EfficiencyAdvice(reason, ms, share, f"{what} ({cost}). {advice}.")


def _float32(found: Efficiency) -> Iterator[EfficiencyAdvice]:
    products = [row for row in found.operators if row.kind in _PRODUCTS and row.dtype == "float32"]
    without = sum(row.time_ns for row in products if row.precision is Precision.FLOAT32)
    yield from _advice(
        found,
        "float32",
        without,
        "Matrix products run in float32, without tensor cores",
        "Use bfloat16 (torch.autocast), or TF32: torch.set_float32_matmul_precision('high')",
    )
    tf32 = sum(row.time_ns for row in products if row.precision is Precision.TF32)
    yield from _advice(
        found,
        "tf32",
        tf32,
        "Matrix products run in TF32",
        "In bfloat16 (torch.autocast) tensor cores are twice as fast, and half the bytes are moved",
    )


def _unaligned(found: Efficiency) -> Iterator[EfficiencyAdvice]:
    odd = [(row, _odd_sizes(row, found.limits)) for row in found.operators]
    time_ns: Counter[int] = Counter()
    for row, sizes in odd:
        time_ns.update(dict.fromkeys(sizes, row.time_ns))
    longest = sorted(time_ns, key=lambda size: (-time_ns[size], size))
    if longest:
        named = format_list([f"{size:,}" for size in longest], max_items=4)
        to = f" ({-(-longest[0] // PADDED) * PADDED:,})" if len(longest) == 1 else ""
        yield from _advice(
            found,
            "unaligned",
            sum(row.time_ns for row, sizes in odd if sizes),
            f"Matrix products with a size of {named}, not a multiple of {ALIGNMENT}, run in slow kernels",
            f"Pad it, such as the vocabulary or a number of features, to a multiple of {PADDED}{to}",
        )


def _odd_sizes(row: OperatorEfficiency, limits: DeviceLimits | None) -> set[int]:
    """The sizes of a matrix product that do not divide by 8: all in a kernel for such sizes; of a product that is slow
    for what it is those of the rows in memory, not the number of rows."""
    if row.kind is not OperatorKind.MATRIX_PRODUCT or row.precision is Precision.FLOAT32:
        return set()
    limit = bound(row, limits)
    is_slow = limit is not None and limit.by == "compute" and limit.reached < SLOW
    sizes = row.aligned if row.narrow else row.aligned[1:] if is_slow else ()
    return {size for size in sizes if size % ALIGNMENT}


def _math_attention(found: Efficiency) -> Iterator[EfficiencyAdvice]:
    yield from _advice(
        found,
        "math-attention",
        found.math_attention_ns,
        "Attention runs as separate matrix products and a softmax, in the forward pass alone",
        "Use inputs that a fused kernel takes: bfloat16 or float16, head sizes that are multiples of 8, is_causal=True "
        "instead of a mask (torch.nn.attention.sdpa_kernel says why one is refused)",
    )
