"""File names of traces in a run folder (docs/run-folder.md): rank, attempt and steps."""

from __future__ import annotations

import re
from dataclasses import dataclass

TRACE_NAME = re.compile(r"rank-(\d+)\.attempt-(\d+)\.steps-(\d+)-(\d+)\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True, order=True)
class TraceName:
    """`start_step` is the first traced step, `end_step` the first step after the traced ones."""

    attempt: int
    start_step: int
    end_step: int
    rank: int

    @property
    def spool_name(self) -> str:
        """The name of the finished trace in the spool, as the profiler hook writes it."""
        return f"rank-{self.rank}.attempt-{self.attempt}.steps-{self.start_step}-{self.end_step}.json"

    @property
    def archive_name(self) -> str:
        """The name of the collected, compressed trace."""
        return self.spool_name + ".gz"


def parse_trace_name(name: str) -> TraceName | None:
    """None for any other name, including that of a file still being written (.tmp)."""
    match = TRACE_NAME.fullmatch(name)
    if match is None:
        return None
    rank, attempt, start, end = (int(group) for group in match.groups())
    return TraceName(attempt=attempt, start_step=start, end_step=end, rank=rank)
