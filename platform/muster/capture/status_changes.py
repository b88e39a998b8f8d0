"""Changes of the status of a capture that traces and stacks share."""

from __future__ import annotations

from collections.abc import Sequence

from muster.api.spec.captures import CapturedRank, CapturePhase, TraceCaptureStatus
from muster.api.spec.fields import Condition

MAX_RANKS_BYTES = 256 << 10
"""Of the ranks of a status, which must fit into an object of the API server."""
_CUTS = ((16, 1024, 256), (8, 256, 256), (3, 128, 256), (1, 64, 256), (0, 16, 0))
"""Frames, characters of a text and of the file of each rank; 1024 ranks fit with the last ones."""


def finished(
    status: TraceCaptureStatus, phase: CapturePhase, reason: str, message: str, now: float
) -> TraceCaptureStatus:
    """The status with the outcome and its condition."""
    ended = status.model_copy(update={"phase": phase, "reason": reason, "message": message[:4096], "finished_at": now})
    return with_capture_condition(ended, "Complete" if phase == "Succeeded" else "Failed", reason, ended.message, now)


def with_capture_condition(
    status: TraceCaptureStatus, condition: str, reason: str, message: str, now: float
) -> TraceCaptureStatus:
    """The status with this condition set to True."""
    entry = Condition(type=condition, status="True", reason=reason, message=message, last_transition_time=now)
    others = [one for one in status.conditions if one.type != condition]
    return status.model_copy(update={"conditions": [*others, entry]})


def ranks_within(ranks: Sequence[CapturedRank], most_bytes: int) -> list[CapturedRank]:
    """The ranks with so many frames, and so much of their texts, that all of them are at most `most_bytes` of JSON."""
    cut: list[CapturedRank] = []
    for frames, text, file in _CUTS:
        cut = [
            entry.model_copy(
                update={
                    "frames": [frame[: min(text, 512)] for frame in entry.frames[:frames]],
                    "reason": entry.reason[:text],
                    "file": entry.file[:file],
                }
            )
            for entry in ranks
        ]
        if sum(len(entry.model_dump_json(by_alias=True).encode()) for entry in cut) <= most_bytes:
            break
    return cut
