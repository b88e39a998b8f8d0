"""Times and steps as people type them, and what they are told when they mistype."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.duration import read_duration, read_step_range


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", 7200), ("1h30m", 5400), ("45s", 45), ("1d", 86_400), ("90", 90), ("1d1h1m1s", 90_061), ("1.5h", 5400),
        (" 10m ", 600),
    ],
)  # fmt: skip
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert read_duration(text) == seconds


def test_a_window_is_half_open() -> None:
    assert read_step_range("20:25") == (20, 5)


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_duration, "2x", "must be a duration such as 2h"),
        (read_duration, "", "must be a duration"),
        (read_duration, "-5", "must be a duration"),
        (read_duration, "30m1h", "must be a duration"),
        (read_duration, "0s", "must be at least 1s"),
        (read_duration, "9" * 400 + "h", "must be a duration such as 2h, of at most 64 characters"),
        (read_duration, "9" * 5000, "must be a duration such as 2h, of at most 64 characters"),
        (read_step_range, "1:" + "9" * 5000, "must be a range of steps"),
        (read_step_range, "0:5", "must start at step 1 or later"),
        (
            read_step_range,
            "25:20",
            "must have END above FIRST, because step END is not included; write for example 25:30",
        ),
        (read_step_range, "20", "must be a range of steps FIRST:END, such as 20:25"),
        (read_step_range, "20:20", "must have END above FIRST"),
    ],
)
def test_what_cannot_be_read_is_reported_with_what_would_be_right(
    read: Callable[[str], Any], text: str, told: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        read(text)


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_the_parts_of_a_duration_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    assert read_duration(f"{days}d{hours}h{minutes}m{seconds}s") == ((days * 24 + hours) * 60 + minutes) * 60 + seconds
