"""Which ranks a capture profiles: `all`, `0,8`, `stage-leaders`, `slowest` or `random:4`."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from muster.api.spec.captures import CAPTURED_RANKS_PATTERN, MAX_CAPTURED_RANKS
from muster.capture.protocol import RankReport
from muster.errors import InvalidSpec, Refused

VALID_RANKS = "all, ranks such as 0,8, stage-leaders, slowest, or random:4"


def check_ranks(text: str, field: str) -> None:
    """Raises `InvalidSpec` for a text that selects no ranks."""
    if not re.fullmatch(CAPTURED_RANKS_PATTERN, text):
        raise InvalidSpec(f"{field} must be {VALID_RANKS}; got {text[:60]!r}", field=field)


def select_ranks(text: str, reports: Sequence[RankReport], seed: str) -> tuple[int, ...]:
    """The chosen ranks in ascending order; `reports` are of all ranks of the attempt. Raises `InvalidSpec` for an
    invalid text, and `Refused` RankNotFound, NoPipeline or TooManyRanks."""
    check_ranks(text, "ranks")
    known = sorted(report.rank for report in reports)
    if text == "all":
        chosen = known
    elif text == "slowest":
        slowest = max(reports, key=lambda report: (report.step_time_s or 0.0, -report.rank))
        chosen = [slowest.rank]
    elif text == "stage-leaders":
        if any(report.stage is None for report in reports):
            message = "ranks: stage-leaders requires a pipeline (--parallel pp=N of the trainer); use all, or ranks"
            raise Refused(message, field="ranks", reason="NoPipeline")
        leaders: dict[int | None, int] = {}
        for report in sorted(reports, key=lambda report: report.rank):
            leaders.setdefault(report.stage, report.rank)
        chosen = sorted(leaders.values())
    elif text.startswith("random:"):
        count = int(text.removeprefix("random:"))
        if count > len(known):
            raise _unknown_rank(f"random:{count}", len(known))
        chosen = sorted(random.Random(seed).sample(known, count))
    else:
        chosen = sorted({int(part) for part in text.split(",")})
        missing = sorted(set(chosen) - set(known))
        if missing:
            raise _unknown_rank(", ".join(map(str, missing[:8])), len(known))
    if len(chosen) > MAX_CAPTURED_RANKS:
        message = (
            f"ranks: must be at most {MAX_CAPTURED_RANKS}; {text} are {len(chosen)}; use random:{MAX_CAPTURED_RANKS}"
        )
        raise Refused(message, field="ranks", reason="TooManyRanks")
    return tuple(chosen)


def _unknown_rank(got: str, world_size: int) -> Refused:
    ranks = "rank 0 only" if world_size == 1 else f"the ranks 0 to {world_size - 1}"
    return Refused(f"ranks: the job has {ranks}; got {got}", field="ranks", reason="RankNotFound")
