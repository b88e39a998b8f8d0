"""Durations, times, sizes and counts as people read them, and as they type them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from muster.duration import read_duration, read_step_range
from muster.errors import InvalidSpec

T = TypeVar("T")


def format_duration(seconds: float) -> str:
    """The two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m{left % 60:02d}s"
    if left < 86_400:
        return f"{left // 3600}h{left % 3600 // 60:02d}m"
    return f"{left // 86_400}d{left % 86_400 // 3600:02d}h"


def format_time(time_s: float, now: float) -> str:
    """A time of day, with the date when it is not today's, and how far it is: `14:03:10 (in 2m10s)`."""
    # The user's own time zone is what a clock on the wall shows.
    then, today = datetime.fromtimestamp(time_s).astimezone(), datetime.fromtimestamp(now).astimezone()
    shown = then.strftime("%H:%M:%S") if then.date() == today.date() else then.strftime("%Y-%m-%d %H:%M")
    distance = f"in {format_duration(time_s - now)}" if time_s > now else f"{format_duration(now - time_s)} ago"
    return f"{shown} ({distance})"


def parse_duration(text: str, field: str) -> int:
    """Seconds of `2h`, `1h30m`, `45s` or `90`. Raises `InvalidSpec` that names `field`."""
    return _parse_field(read_duration, text, field)


def parse_time(text: str, now: float, field: str) -> float:
    """Unix seconds of a duration before `now` (`10m`) or of a time (`2026-11-20T14:00:00`)."""
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(text, field)
    except InvalidSpec as error:
        message = f"{field}: {text!r} must be an age such as 10m or 2h, or a time such as 2026-11-20T14:00:00"
        raise InvalidSpec(message, field=field) from error


def parse_step_range(text: str, field: str) -> tuple[int, int]:
    """(first, number) of a half-open range of steps: `20:25` is 5 steps from 20. Raises as `parse_duration` does."""
    return _parse_field(read_step_range, text, field)


def _parse_field(parse: Callable[[str], T], text: str, field: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidSpec(f"{field}: {text!r} {error}", field=field) from error


def format_bytes(count: float) -> str:
    """Bytes: 512 B, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if count < 1024 or unit == "EiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the loop returns")


def format_count(number: float) -> str:
    """A rate or a count in four characters or so: 950, 12.3k, 1.8M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= factor:
            return f"{number / factor:.1f}{unit}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"


def format_resource(value: int, resource: str) -> str:
    """An amount of a resource: cores of cpu, GiB of memory, else the number."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource in ("memory", "ephemeral-storage"):
        return format_bytes(value).replace(" ", "").replace("iB", "i").replace(".0", "")
    return str(value)


def short_resource_name(resource: str) -> str:
    """`nvidia.com/gpu` is `gpu` to people."""
    return resource.rpartition("/")[2]


def pluralize(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
