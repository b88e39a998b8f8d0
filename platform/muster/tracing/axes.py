"""Ticks of an axis and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

MIN_RANGE = 1e-100  # ticks of a shorter axis could not be distinguished


def tick_values(lo: float, hi: float, target_count: int, *, integer: bool = False) -> list[float]:
    """About `target_count` round numbers that span [lo, hi]; at least two."""
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi - lo < MIN_RANGE:
        return [lo, lo + 1]
    rough = (hi - lo) / max(target_count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, 1.0) if integer else step
    step = round(step) if integer else step
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_labels(values: Sequence[float], *, as_time: bool = False) -> list[str]:
    """Labels with one unit for all and as few decimals as distinguish them."""
    largest = max((abs(v) for v in values), default=0.0)
    factor, unit = 1.0, ""
    if as_time:
        factor, unit = next(((f, u) for f, u in ((1.0, " s"), (1e3, " ms")) if largest * f >= 1), (1e6, " µs"))
    scaled = [v * factor for v in values]
    decimals = next(
        (d for d in range(7) if all(abs(v - round(v, d)) < 1e-6 * max(largest * factor, 1) for v in scaled)), 6
    )
    return ["0" if v == 0 else f"{v:,.{decimals}f}{unit}" for v in scaled]
