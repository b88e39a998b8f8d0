"""Which part of a replica's log is asked for: the same question on this host and on a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogOptions:
    """One attempt (None: the newest one that has a log), of that the lines between two times, of those the last.

    `since` and `until` are Unix seconds, `tail` a number of lines. `follow`: lines to come as well, until the replica's
    attempt is over.
    """

    attempt: int | None = None
    since: float | None = None
    until: float | None = None
    tail_lines: int | None = None
    follow: bool = False


DEFAULT_LOG_OPTIONS = LogOptions()
"""All that there is of the newest log."""
