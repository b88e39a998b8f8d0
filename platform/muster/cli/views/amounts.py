"""Durations, times, sizes and counts as people read them, and as they type them."""

from __future__ import annotations

import re
from datetime import datetime

from muster.errors import InvalidSpec

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"^(?:\d+(?:\.\d+)?[smhd])+$")


def duration(seconds: float) -> str:
    """The two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left}s"
    if left < 3600:
        return f"{left // 60}m{left % 60:02d}s"
    if left < 86_400:
        return f"{left // 3600}h{left % 3600 // 60:02d}m"
    return f"{left // 86_400}d{left % 86_400 // 3600:02d}h"


def moment(at: float, now: float) -> str:
    """A time of day, with the date when it is not today's, and how far it is: `14:03:10 (in 2m10s)`."""
    # The user's own time zone is what a clock on the wall shows.
    then, today = datetime.fromtimestamp(at).astimezone(), datetime.fromtimestamp(now).astimezone()
    shown = then.strftime("%H:%M:%S") if then.date() == today.date() else then.strftime("%Y-%m-%d %H:%M")
    distance = f"in {duration(at - now)}" if at > now else f"{duration(now - at)} ago"
    return f"{shown} ({distance})"


def parse_duration(text: str, field: str) -> int:
    """Seconds of `2h`, `1h30m`, `45s` or `90`. Raises `InvalidSpec` that names `field`."""
    stripped = text.strip()
    if stripped.isdigit():
        return int(stripped)
    if not _DURATION.match(stripped):
        raise InvalidSpec(f"{field}: {text!r} is no duration; write 90, 45s, 10m, 2h or 1h30m", field=field)
    return round(sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"\d+(?:\.\d+)?[smhd]", stripped)))


def parse_moment(text: str, now: float, field: str) -> float:
    """Unix seconds of a duration before `now` (`10m`) or of a time (`2026-11-20T14:00:00`)."""
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    try:
        return now - parse_duration(text, field)
    except InvalidSpec as error:
        told = f"{field}: {text!r} is no time; write how long ago (10m, 2h) or a time (2026-11-20T14:00:00)"
        raise InvalidSpec(told, field=field) from error


def parse_steps(text: str, field: str) -> tuple[int, int]:
    """(first, number) of a half-open range of steps: `20:25` is 5 steps from 20."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if not match or int(match[2]) <= int(match[1]):
        raise InvalidSpec(f"{field}: {text!r} is no range of steps; write first:end, as in 20:25", field=field)
    return int(match[1]), int(match[2]) - int(match[1])


def size(count: float) -> str:
    """Bytes: 512 B, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the loop returns")


def count(number: float) -> str:
    """A rate or a count in four characters or so: 950, 12.3k, 1.8M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= factor:
            return f"{number / factor:.1f}{unit}"
    return f"{number:.0f}" if abs(number) >= 10 or number == int(number) else f"{number:.1f}"


def amount(value: int, resource: str) -> str:
    """An amount of a resource: cores of cpu, GiB of memory, else the number."""
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource in ("memory", "ephemeral-storage"):
        return size(value).replace(" ", "").replace("iB", "i").replace(".0", "")
    return str(value)


def short_resource(resource: str) -> str:
    """`nvidia.com/gpu` is `gpu` to people."""
    return resource.rpartition("/")[2]


def plural(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
