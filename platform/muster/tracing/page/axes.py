"""What all charts have in common: an area with scales and axes, labels, and the SVG element around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDE_PX = 1040
GLYPH_PX = 7.3  # average character width of 12 px DejaVu Sans, the widest of the page's fonts


@dataclass(frozen=True, slots=True)
class Area:
    """The rectangle of a chart in pixels, with a linear scale in each direction; values grow to the right and upwards.
    `padding` is kept free on both sides, so that points do not touch the labels."""

    left: float
    top: float
    wide: float
    high: float
    x_range: tuple[float, float] = (0.0, 1.0)
    y_range: tuple[float, float] = (0.0, 1.0)
    padding: float = 0.0

    @property
    def bottom(self) -> float:
        return self.top + self.high

    def x(self, value: float) -> float:
        """The pixel of a value; the middle if the range has no length."""
        low, high = self.x_range
        part = (value - low) / (high - low) if high > low else 0.5
        return self.left + self.padding + (self.wide - 2 * self.padding) * part

    def y(self, value: float) -> float:
        """The pixel of a value, at the top for larger ones."""
        low, high = self.y_range
        return self.top + self.high * (1 - (min(value, high) - low) / (high - low))

    def y_axis(self, ticks: Sequence[float], names: Sequence[str]) -> list[str]:
        """Horizontal lines with labels on the left."""
        out = []
        for tick, name in zip(ticks, names, strict=True):
            at = self.y(tick)
            out.append(f'<line class="grid" {_line(self.left, self.left + self.wide, at, at)}/>')
            out.append(text(name, self.left - 6, at + 4, anchor="end"))
        return out

    def x_axis(
        self, ticks: Sequence[float], names: Sequence[str], *, title: str = "", lines: bool = False
    ) -> list[str]:
        """Labels below, with vertical lines if wanted, and a title below them."""
        out = []
        for tick, name in zip(ticks, names, strict=True):
            at = self.x(tick)
            top = self.top if lines else self.bottom
            out.append(f'<line class="grid" {_line(at, at, top, self.bottom + 4)}/>')
            out.append(text(name, at, self.bottom + 16, style="quiet"))
        if title:
            out.append(text(title, self.left + self.wide / 2, self.bottom + 32, style="quiet"))
        return out


def _line(x1: float, x2: float, y1: float, y2: float) -> str:
    return f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'


def text(shown: str, x: float, y: float, *, anchor: str = "middle", style: str = "") -> str:
    """A text at a pixel, escaped."""
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'


def svg_element(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """The SVG element. On narrow screens it scrolls below a minimum width (classes `wide` and `medium`)."""
    kind = "wide" if width > 600 else "medium" if width > 440 else "small"
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


# Ticks of a shorter axis could not be distinguished.
MIN_RANGE = 1e-100
MIN_RELATIVE_RANGE = 1e-12


def tick_values(lo: float, hi: float, target_count: int, *, integer: bool = False) -> list[float]:
    """About `target_count` round numbers that span [lo, hi]; at least two."""
    if not (math.isfinite(lo) and math.isfinite(hi)) or hi - lo < max(MIN_RANGE, MIN_RELATIVE_RANGE * abs(lo)):
        return [lo, lo + unit_at(lo)]
    rough = (hi - lo) / max(target_count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    step = max(step, 1.0) if integer else step
    step = round(step) if integer else step
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def unit_at(value: float) -> float:
    """1, or more for values to which adding 1 makes no difference."""
    return max(1.0, 1e-6 * abs(value))


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
