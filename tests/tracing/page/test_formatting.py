"""Human-readable numbers."""

from __future__ import annotations

import pytest

from muster.tracing.formatting import (
    format_bytes,
    format_count,
    format_list,
    format_number,
    format_percent,
    format_seconds,
    shorten_middle,
)
from muster.tracing.page.axes import tick_labels, tick_values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 µs"),
        (42.1e-6, "42.1 µs"),
        (0.134, "134 ms"),
        (0.9999, "1.00 s"),
        (1.2345, "1.23 s"),
        (99.9, "99.9 s"),
        (99.96, "1m40s"),
        (754, "12m34s"),
        (7200, "2h00m"),
        (float("nan"), "–"),
    ],
)
def test_seconds_have_a_suitable_unit(value: float, shown: str) -> None:
    assert format_seconds(value) == shown


@pytest.mark.parametrize(
    ("part", "shown"), [(0, "0%"), (1, "100%"), (0.1834, "18.3%"), (0.0001, "<0.1%"), (0.08, "8.0%")]
)
def test_fractions_are_shown_in_percent(part: float, shown: str) -> None:
    assert format_percent(part) == shown


@pytest.mark.parametrize(("value", "shown"), [(5.0, "5"), (13012, "13,012"), (1_376_543, "1.38M"), (129_000, "129k")])
def test_large_counts_are_abbreviated(value: float, shown: str) -> None:
    assert format_count(value) == shown


def test_numbers_have_three_significant_digits() -> None:
    assert [format_number(v) for v in (0.012345, 2.4, 12.345, 1234.5, 0)] == ["0.0123", "2.40", "12.3", "1,234", "0"]


def test_sizes_are_in_powers_of_1024() -> None:
    assert [format_bytes(v) for v in (12, 2048, 58_935_301_000)] == ["12 bytes", "2.00 KiB", "54.9 GiB"]


def test_lists_are_joined_with_and() -> None:
    assert [format_list(["a", "b", "c"][:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert format_list(list("abcdef"), max_items=4) == "a, b, c and 3 more"


@pytest.mark.parametrize(
    ("lo", "hi", "names"),
    [
        (0.0, 0.29, ["0", "100 ms", "200 ms", "300 ms"]),
        (0.0, 0.000052, ["0", "20 µs", "40 µs", "60 µs"]),
        (0.0, 9.0, ["0", "2.5 s", "5.0 s", "7.5 s", "10.0 s"]),
    ],
)
def test_ticks_are_round_numbers_with_one_unit(lo: float, hi: float, names: list[str]) -> None:
    assert tick_labels(tick_values(lo, hi, 5), as_time=True) == names


def test_an_axis_of_one_value_has_two_ticks() -> None:
    assert tick_values(3.0, 3.0, 5) == [3.0, 4.0]


@pytest.mark.parametrize(
    ("text", "length", "shown"),
    [("rank 0", 6, "rank 0"), ("host_1.17000001", 8, "host…001"), ("host_1.17000002", 7, "hos…002")],
)
def test_a_long_label_keeps_its_beginning_and_its_end(text: str, length: int, shown: str) -> None:
    assert shorten_middle(text, length) == shown
