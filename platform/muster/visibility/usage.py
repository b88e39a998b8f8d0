"""The query parameters of usage over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar, get_args

from muster.routes import bad_parameter
from muster.usage.report import STEP_HOURS, UsageGroup, UsagePeriod, UsageStep, hour_of

MAX_STEPS = 1000
_DEFAULT_DAYS = 30
_MAX_TIME_S = 253_402_300_800.0  # the year 10000, the first that cannot be printed
USAGE_PARAMETERS: Mapping[str, str] = {
    "from": (
        f"Start of the period, as 2026-11-01 or 2026-11-01T08:00:00Z; default: {_DEFAULT_DAYS} days before its end."
    ),
    "to": "End of the period; default: now. Both are extended to whole steps in UTC.",
    "by": "queue (default), namespace or user.",
    "step": f"day (default) or hour. A period has at most {MAX_STEPS} steps.",
}
"""Descriptions by name."""
_T = TypeVar("_T", bound=str)


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """What to sum by, and of which time. Times are Unix seconds; None: the default."""

    by: UsageGroup = "queue"
    step: UsageStep = "day"
    since: float | None = None
    until: float | None = None

    def period(self, now: float) -> UsagePeriod:
        """The period in whole steps. Raises `InvalidSpec` BadRequest if it is empty or too long."""
        until = now if self.until is None else self.until
        since = until - _DEFAULT_DAYS * 86_400.0 if self.since is None else self.since
        length = STEP_HOURS[self.step]
        first = hour_of(since) // length * length
        last = -(-hour_of(until + 3600.0 - 0.001) // length) * length
        steps = (last - first) // length
        if since >= until:
            raise bad_parameter("from", f"must be before `to`; got {_text(since)} and {_text(until)}")
        if steps > MAX_STEPS:
            raise bad_parameter(
                "from", f"the period must have at most {MAX_STEPS} steps; got {steps} of one {self.step}"
            )
        return UsagePeriod(first, last, self.step)


def parse_usage_query(given: Mapping[str, str]) -> UsageQuery:
    """The query of these parameters. Raises `InvalidSpec` BadRequest for an invalid value."""
    return UsageQuery(
        _choice(given, "by", "queue", get_args(UsageGroup)),
        _choice(given, "step", "day", get_args(UsageStep)),
        _time(given, "from"),
        _time(given, "to"),
    )


def _choice(given: Mapping[str, str], name: str, default: _T, valid: tuple[_T, ...]) -> _T:
    value = given.get(name) or default
    for one in valid:
        if value == one:
            return one
    raise bad_parameter(name, f"must be one of {', '.join(valid)}; got {value[:80]!r}")


def _time(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name, "")
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < _MAX_TIME_S:
        raise bad_parameter(name, f"must be a time such as 2026-11-01 or 2026-11-01T08:00:00Z; got {text[:80]!r}")
    return seconds


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
