"""The overlap of communication with computation."""

from __future__ import annotations

from dataclasses import dataclass

from muster.tracing.spans import Spans, intersect, total_ns


@dataclass(frozen=True, slots=True)
class Overlap:
    """Nanoseconds of communication, and those during which computation ran as well."""

    communication_ns: int
    overlapped_ns: int

    @property
    def ratio(self) -> float | None:
        """|communication and computation| / |communication|, as HTA defines it; None without communication."""
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None


def overlap(communication: Spans, computation: Spans) -> Overlap:
    """The overlap of two sets; concurrent spans within a set count once."""
    return Overlap(total_ns(communication), total_ns(intersect(communication, computation)))
