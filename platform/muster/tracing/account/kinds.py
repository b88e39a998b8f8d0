"""What a rank's time is spent on, in the order in which it counts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Spent(IntEnum):
    """The kinds of time. Of several at once, the first one counts.

    The first three are work of the device (of operators and of the backend's threads in a trace without device work),
    the others what the host did while the device was idle, or the main thread had nothing to run.
    """

    COMPUTE = 0
    COLLECTIVE = 1
    """A collective, a send or a receive while nothing computes: the transfer, and waiting for a late rank."""
    CHECKPOINT = 2
    """Within an annotation of saving: its copies, its calls and its writing."""
    COPY = 3
    """A copy of the device, and the operator that waits for it."""
    ALLOCATOR = 4
    """cudaMalloc, cudaFree and their kin."""
    GARBAGE = 5
    """Python collects garbage, where that is recorded."""
    PREPROCESS = 6
    """An operator that computes on the CPU: one of data loading, or a long one that launches nothing."""
    DATA = 7
    """Within an annotation of data loading."""
    COMPILE = 8
    ANNOTATION = 9
    """Within another annotation that is not a phase of training."""
    BLOCKED = 10
    """No thread runs an operator or a call for at least a millisecond."""
    SYNC = 11
    """A call that waits for the device, and launching the next work after it."""
    OPERATOR = 12
    """Some thread runs an operator or a call of the runtime, such as launching a kernel."""
    PYTHON = 13
    """Within a phase of training, between operators."""
    UNKNOWN = 14
    """Short gaps in which no thread has an operator, a call or an annotation open."""


HOST = (
    Spent.CHECKPOINT,
    Spent.ALLOCATOR,
    Spent.GARBAGE,
    Spent.PREPROCESS,
    Spent.DATA,
    Spent.COMPILE,
    Spent.ANNOTATION,
)
"""What the host may also do while its device works. A host in which nothing runs may have nothing to do then."""


@dataclass(frozen=True, slots=True)
class Label:
    """A kind with its place: an annotation, an operator, a kind of copy; empty where there is none."""

    spent: Spent
    place: str = ""
