"""Human-readable numbers: three significant digits and a unit."""

from __future__ import annotations

import math

from muster.text import format_duration


def format_seconds(value: float) -> str:
    """1.23 s, 134 ms, 42.1 µs; from 100 s on 1m40s, 2h05m."""
    if not math.isfinite(value):
        return "–"
    magnitude = abs(value)
    if magnitude >= 99.95:
        return ("-" if value < 0 else "") + format_duration(magnitude)
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if magnitude * factor >= 0.9995:
            return f"{format_number(value * factor)} {unit}"
    return f"{format_number(value * 1e6)} µs"


def format_ms(value: float) -> str:
    """The same of milliseconds."""
    return format_seconds(value / 1e3)


def format_number(value: float, significant: int = 3) -> str:
    """At least `significant` digits, without a trailing point: 0.0123, 1.23, 12.3, 1234."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    value = (
        float(f"{value:.{significant - 1}e}") if abs(value) < 10**significant else value
    )  # 0.9999 has one digit before the point
    before = math.floor(math.log10(abs(value))) + 1
    return f"{value:,.{min(max(significant - before, 0), 6)}f}"


def format_percent(fraction: float) -> str:
    """0.1834 as 18.3%; no decimals for 0% and from 99.95% on."""
    value = 100 * fraction
    if 0 < abs(value) < 0.05:
        return "<0.1%"
    return f"{value:.0f}%" if abs(value) >= 99.95 or value == 0 else f"{value:.1f}%"


def format_count(value: float) -> str:
    """12,345 up to 100,000, then 123k, 1.23M, 1.23G."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor and abs(value) >= 1e5:
            return f"{format_number(value / factor)}{unit}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else format_number(value)


def format_bytes(value: float) -> str:
    """Bytes in powers of 1024: 1.50 GiB."""
    unit, name = binary_unit(value)
    return f"{format_number(value / unit)} {name}" if unit > 1 else f"{value:.0f} bytes"


def binary_unit(value: float) -> tuple[int, str]:
    """The bytes and the name of the largest binary unit not above `value`: 1024, "KiB"."""
    for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return 1024**power, name
    return 1, "bytes"


def format_list(items: list[str], max_items: int = 6) -> str:
    """a, b and c; items above `max_items` are counted: "and 3 more"."""
    if len(items) > max_items:
        return f"{', '.join(items[: max_items - 1])} and {len(items) - max_items + 1} more"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def shorten_middle(text: str, max_length: int) -> str:
    """At most `max_length` characters: of a longer text its beginning and its end, which distinguish file names."""
    if len(text) <= max_length:
        return text
    tail = (max_length - 1) // 2
    return f"{text[: max_length - 1 - tail]}…{text[len(text) - tail :]}"
