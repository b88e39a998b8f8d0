"""Formats, parses and sanitizes text for terminals and messages.

Text of other programs, such as messages of a cluster and lines of a log, is sanitized before it is printed: a terminal
obeys escape sequences, which move the cursor, rename the window, write the clipboard (OSC 52) or request answers that
arrive as typed text. Without this, a program could act in the terminal of the user who reads its log.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from muster.errors import InvalidSpec

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_MAX_LENGTH = 64  # characters
_MAX_DIGITS = 18
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in SECONDS))
_T = TypeVar("_T")
MIN_SIMILARITY = 0.6
"""Least similarity (1: equal) of a suggested name."""
_MAX_COMPARED = 200
"""Names that are compared for a suggestion: thousands take tenths of a second."""
_SGR_SEQUENCE = r"\x1b\[[0-9;:]*m"  # SGR: colour and weight
_STRING_SEQUENCE = (
    r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\n]*?(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC with their terminators
)
_CSI_SEQUENCE = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
_OTHER_ESCAPE = r"\x1b[ -/]*[0-Z\\^-~]"  # all other complete sequences
_CONTROL_CHARACTER = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_UNSAFE = re.compile(
    rf"(?P<colour>{_SGR_SEQUENCE})|{_STRING_SEQUENCE}|{_CSI_SEQUENCE}|{_OTHER_ESCAPE}|{_CONTROL_CHARACTER}"
)
_UNSAFE_WITHOUT_STRINGS = re.compile(
    rf"(?P<colour>{_SGR_SEQUENCE})|{_CSI_SEQUENCE}|{_OTHER_ESCAPE}|{_CONTROL_CHARACTER}"
)
_STRING_TERMINATORS = ("\x07", "\x1b\\", "\x9c")


def is_count(text: str) -> bool:
    """Whether this is an integer of at least 0, of at most 18 digits: Python refuses to convert thousands."""
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def read_duration(text: str) -> int:
    """Seconds of `2h`, `1h30m`, `1.5h`, `45s` or a plain number of seconds; at least 1. Raises ValueError whose message
    is the predicate of a sentence about the text: "must be ..."."""
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
    """A local time of day, with the date unless it is today, and the distance: `14:03:10 (in 2m10s)`."""
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
        return max(0.0, now - parse_duration(text, field))
    except InvalidSpec as error:
        message = f"{field}: {text!r} must be an age such as 10m or 2h, or a time such as 2026-11-20T14:00:00"
        raise InvalidSpec(message, field=field) from error


def parse_future_time(text: str, now: float, field: str) -> float:
    """Unix seconds of a duration from `now` (`2h`) or of a time (`2026-11-20T14:00:00`, or `18:00`, the next one).
    Raises `InvalidSpec` that names `field`."""
    text, today = text.strip(), datetime.fromtimestamp(now).astimezone()
    with suppress(ValueError, OverflowError):
        if re.fullmatch(r"\d\d?:\d\d", text):
            hour, minute = map(int, text.split(":"))
            then = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
            return (then if then > today else then + timedelta(days=1)).timestamp()
        if "-" in text:
            return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        later = now + read_duration(text)
        datetime.fromtimestamp(later, UTC)  # there are no years after 9999
        return later
    message = f"{field}: {text!r} must be a duration such as 2h, or a time such as 18:00 or 2026-11-20T14:00:00"
    raise InvalidSpec(message, field=field)


def parse_step_range(text: str, field: str) -> tuple[int, int]:
    """(first, number) of a half-open range of steps: `20:25` is 5 steps from 20. Raises as `parse_duration` does."""
    return _parse_field(read_step_range, text, field)


def _parse_field(parse: Callable[[str], _T], text: str, field: str) -> _T:
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
    """A rate or a count in about four characters: 950, 12.3k, 1.8M."""
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


_HOURS_OF = {"gpu": "GPU", "cpu": "core"}


def short_resource_name(resource: str) -> str:
    """The name without its domain: `gpu` for `nvidia.com/gpu`."""
    return resource.rpartition("/")[2]


def format_hours(hours: float) -> str:
    """Usage, with three decimals below 100, so that a job of a minute does not show as 0."""
    return "<0.001" if 0 < hours < 0.001 else f"{hours:,.3f}" if hours < 100 else f"{hours:,.1f}"


def hours_unit(resource: str) -> str:
    """The unit of its usage: GPU-hours, core-hours, or NAME-hours of another resource."""
    name = short_resource_name(resource)
    return f"{_HOURS_OF.get(name, name)}-hours"


def rank_list(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2 and 61 more`."""
    known = sorted(ranks)
    if len(known) == 1:
        return f"rank {known[0]}"
    named = ", ".join(map(str, known[:8]))
    return f"ranks {named}" + (f" and {len(known) - 8} more" if len(known) > 8 else "")


def pluralize(number: int, noun: str) -> str:
    """`1 job`, `3 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def closest_match(name: str, known: Iterable[str], min_similarity: float = MIN_SIMILARITY) -> str | None:
    """The most similar known name, of many only of those next to `name` in alphabetical order; if none is similar
    enough, the first that continues `name` after a hyphen, as generated names do; else None."""
    names = sorted(known) if isinstance(known, (set, frozenset)) else list(known)  # a set's order is random
    near = names
    if len(names) > _MAX_COMPARED:
        near = sorted(names)
        start = bisect_left(near, name) - _MAX_COMPARED // 2
        start = min(max(0, start), len(near) - _MAX_COMPARED)
        near = near[start : start + _MAX_COMPARED]
    similar = difflib.get_close_matches(name, near, 1, min_similarity)
    return next(iter(similar or (one for one in names if name and one.startswith(f"{name}-"))), None)


def did_you_mean(name: str, known: Iterable[str], fallback: str) -> str:
    """The end of a sentence about an unknown name: `did you mean 'x'?`, or `fallback`."""
    near = closest_match(name, known)
    return fallback if near is None else f"did you mean {near!r}?"


def name_hint(name: str, known: Collection[str], kind: str) -> str:
    """A hint for a message about an unknown name: a similar name, else the known ones."""
    shown = sorted(known)[:8]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return did_you_mean(name, known, f"there is {', '.join(shown)}{more}" if shown else f"there is no {kind} yet")


_MAX_JOINED = 8


def join_first(parts: Sequence[str], word: str, kind: str) -> str:
    """`a and b`; of many the first ones, and how many more there are of this kind."""
    more = len(parts) - _MAX_JOINED
    return f" {word} ".join(parts if more <= 1 else [*parts[:_MAX_JOINED], f"{more} more {kind}"])


def sanitize(text: str) -> str:
    """The text without escape sequences, control characters (except newlines and tabs) and bidirectional marks. Of
    a line that was overwritten after a carriage return, only what was written last."""
    return text if text.isprintable() else _apply_carriage_returns(_replace_unsafe(text, lambda found: ""))


def sanitize_keep_colors(line: str) -> str:
    """Like `sanitize`, but keeps colours and weights, and resets them at the end of the line."""
    if line.isprintable():
        return line
    kept = _apply_carriage_returns(_replace_unsafe(line, lambda found: found["colour"] or ""))
    return f"{kept}\x1b[0m" if "\x1b" in kept else kept


def _replace_unsafe(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    """Each line in linear time: a string that does not end would be searched for its end from each of its characters
    that could begin one, so strings are looked for before the last end of a string only."""
    lines = []
    for line in text.split("\n"):
        if not line.isprintable():
            ends = [line.rfind(end) + len(end) for end in _STRING_TERMINATORS if end in line]
            cut = max(ends, default=0)
            rest = _UNSAFE_WITHOUT_STRINGS.sub(replacement, line[cut:])
            line = _UNSAFE.sub(replacement, line[:cut]) + rest
        lines.append(line)
    return "\n".join(lines)


def _apply_carriage_returns(text: str) -> str:
    if "\r" not in text:
        return text
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
