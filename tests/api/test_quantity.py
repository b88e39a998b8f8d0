"""Quantities as Kubernetes writes them, to whole numbers and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.quantity import format_quantity, parse_quantity
from muster.model import MAX_AMOUNT


@pytest.mark.parametrize(
    ("value", "resource", "amount"),
    [
        ("500m", "cpu", 500),
        (2, "cpu", 2000),
        ("0.5", "cpu", 500),
        (1.5, "cpu", 1500),
        ("100u", "cpu", 1),  # a tenth of a milli-core, rounded up
        ("16Gi", "memory", 16 * 2**30),
        ("1.5Gi", "memory", 3 * 2**29),
        ("2G", "memory", 2 * 10**9),
        ("1e3", "memory", 1000),
        ("1500m", "memory", 2),  # rounded up
        (8, "nvidia.com/gpu", 8),
        ("8", "nvidia.com/gpu", 8),
        ("4k", "pods", 4000),
        ("+3", "pods", 3),
        ("0", "pods", 0),
        (str(MAX_AMOUNT), "memory", MAX_AMOUNT),
    ],
)
def test_quantities_are_read_in_the_unit_of_their_resource(value: str | float, resource: str, amount: int) -> None:
    assert parse_quantity(value, resource) == amount


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "must be a quantity, a number with an optional suffix such as 500m, 2 or 16Gi"),
        ("8GB", "must be a quantity"),
        ("8 Gi", "must be a quantity"),
        (" 3 ", "must be a quantity"),
        ("1e3k", "must be a quantity"),
        ("Gi", "must be a quantity"),
        ("1e9999", "must be a quantity"),
        ("0x10", "must be a quantity"),
        ("nan", "must be a quantity"),
        (float("inf"), "must be a quantity"),
        (True, "must be a quantity"),
        ("5mi", "must be a quantity"),
        (-1, "must be at least 0"),
        ("-0.5", "must be at least 0"),
        ("-0", "must be at least 0"),
        ("5Ei", "must be less than 2^62"),
        ("1e30", "must be less than 2^62"),
    ],
)
def test_what_is_no_quantity_is_reported_with_the_resource_and_the_value(value: str | float, message: str) -> None:
    with pytest.raises(ValueError, match=r"^memory: ") as caught:
        parse_quantity(value, "memory")
    assert repr(value) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["1" * 41, "1" + "0" * 2_000_000, "0." + "0" * 2_000_000 + "1"])
def test_an_amount_of_more_than_40_characters_is_refused_with_its_length(value: str) -> None:
    with pytest.raises(ValueError, match=rf"^cpu: must have at most 40 characters; got {len(value)}$"):
        parse_quantity(value, "cpu")


@pytest.mark.parametrize(
    ("amount", "resource", "text"),
    [
        (1500, "cpu", "1500m"),
        (2000, "cpu", "2"),
        (0, "cpu", "0"),
        (2**30, "memory", "1Gi"),
        (2**30 + 2**20, "memory", "1025Mi"),
        (1000, "memory", "1k"),
        (1001, "memory", "1001"),
        (10**18, "memory", "1E"),
        (15 * 10**17, "memory", "1500P"),
        (2**60, "ephemeral-storage", "1Ei"),
        (1000 * 2**10, "memory", "1000Ki"),
        (8 * 10**9, "memory", "8G"),
        (3 * 2**50, "memory", "3Pi"),
        (0, "memory", "0"),
        (2**21, "hugepages-2Mi", "2Mi"),
        (1024, "nvidia.com/gpu", "1024"),
    ],
)
def test_amounts_are_written_in_the_shortest_exact_form(amount: int, resource: str, text: str) -> None:
    assert format_quantity(amount, resource) == text


@given(st.integers(min_value=0, max_value=2**52), st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "pods"]))
def test_what_is_written_is_read_as_the_same_amount(amount: int, resource: str) -> None:
    assert parse_quantity(format_quantity(amount, resource), resource) == amount
