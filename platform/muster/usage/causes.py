"""The causes of the account of a job's time (docs/tasks/goodput.md)."""

from __future__ import annotations

from typing import Final

WAITING: Final = "waiting"
START: Final = "start"
PRODUCTIVE: Final = "productive"
CHECKPOINT: Final = "checkpoint"
TRACING: Final = "tracing"
SLOW: Final = "slow"
LOST: Final = "lost"
RECOVERY: Final = "recovery"
STOPPING: Final = "stopping"
RUNNING: Final = "running"
UNKNOWN: Final = "unknown"
CAUSES: Final = (
    WAITING, START, PRODUCTIVE, CHECKPOINT, TRACING, SLOW, LOST, RECOVERY, STOPPING, RUNNING, UNKNOWN,
)  # fmt: skip
"""In the order in which they are shown. Waiting has its reason behind a slash; running is time of pods that cannot be
divided, since no records of steps can be read."""
