"""Durations (`2h`, `1h30m`) and ranges of steps (`20:25`) in options and annotations."""

from __future__ import annotations

import re

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_MAX_LENGTH = 64  # characters: more digits than these are no number that anybody means
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in SECONDS))


def read_duration(text: str) -> int:
    """Seconds of `2h`, `1h30m`, `1.5h`, `45s` or a plain number of seconds; at least 1. Raises ValueError that ends
    the sentence "the text ..." with what would be right."""
    text = text.strip()
    if len(text) > _MAX_LENGTH:
        raise ValueError("must be a duration such as 2h, of at most 64 characters")
    if text.isdecimal():
        seconds = int(text)
    elif text and (match := _DURATION.fullmatch(text)):
        amounts = zip(match.groups("0"), SECONDS.values(), strict=True)
        seconds = round(sum(float(count) * unit for count, unit in amounts))
    else:
        raise ValueError("must be a duration such as 2h, 1h30m, 45s or a number of seconds")
    if seconds < 1:
        raise ValueError("must be at least 1s")
    return seconds


def read_step_range(text: str) -> tuple[int, int]:
    """(first step, number of steps) of `20:25`, which is steps 20 to 24. Raises ValueError as `read_duration` does."""
    first, colon, end = (part.strip() for part in text.partition(":"))
    if len(text) > _MAX_LENGTH or not (colon and first.isdecimal() and end.isdecimal()):
        raise ValueError("must be a range of steps FIRST:END, such as 20:25 for steps 20 to 24")
    if int(first) < 1:
        raise ValueError("must start at step 1 or later, such as 1:6")
    if int(end) <= int(first):
        message = "must have END above FIRST, because step END is not included"
        raise ValueError(f"{message}; write for example {int(first)}:{int(first) + 5}")
    return int(first), int(end) - int(first)
