"""Counts in flags and environment variables, as text."""

from __future__ import annotations

from typing import Final

_MAX_DIGITS: Final = 18
"""Python refuses to convert thousands of digits."""


def is_count(text: str) -> bool:
    """Whether this is an integer of at least 0, of at most 18 digits."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS
