"""Finds the failed rank's last output in a log that ends with torchrun's own traceback and summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

EXCEPTION = re.compile(r"\b(?!ChildFailedError)\w+(Error|Exception|Interrupt): ")
"""A line that names an exception other than torchrun's own, which does not name the cause."""
_TRACEBACK = "Traceback (most recent call last):"
_ROOT_CAUSE = "Root Cause (first observed failure):"
_RANK = re.compile(r"^rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_EXIT_CODE = re.compile(r"^exitcode\s*: (?P<code>-?\d+)")
_RANK_PREFIX = re.compile(r"^\[\w*?(?P<local>\d+)\]: ?")  # of a rank's line, with --tee
_LAUNCHER_OUTPUT = re.compile(
    r"^[IWE]\d{4} [\d:.]+ \d+ \S*torch/distributed/|^Setting OMP_NUM_THREADS environment variable"
)


def root_cause_line(lines: Sequence[str]) -> str | None:
    """The line that best explains why the first rank failed; without output of a rank, its exit code. None if the log
    does not end with torchrun's summary. `lines` must be stripped."""
    begin = _summary_start(lines)
    if begin is None:
        return None
    output, summary = [line for line in lines[:begin] if line and not _LAUNCHER_OUTPUT.match(line)], lines[begin:]
    cause = list(summary[summary.index(_ROOT_CAUSE) :]) if _ROOT_CAUSE in summary else []
    rank, code = _first_match(_RANK, cause), _first_match(_EXIT_CODE, cause)
    if rank is not None:
        own = [line for line in output if (found := _RANK_PREFIX.match(line)) and found["local"] == rank["local"]]
        output = own or output
    words = [text for line in output if any(map(str.isalnum, text := _RANK_PREFIX.sub("", line)))]
    exception = next((text for text in (*reversed(words), *cause) if EXCEPTION.search(text)), None)
    if exception is not None or words:
        return exception if exception is not None else words[-1]
    return None if rank is None or code is None else f"rank {rank['rank']} exited with code {code['code']}"


def _summary_start(lines: Sequence[str]) -> int | None:
    """The index of the first line of torchrun's own output."""
    child = next((at for at, line in enumerate(lines) if "ChildFailedError" in line), None)
    if child is None:
        return 0 if _ROOT_CAUSE in lines else None  # the tail begins inside the summary
    before = lines[:child]
    if _TRACEBACK not in before:
        return 0 if any("torch/distributed/" in line for line in before) else child
    at = child - 1 - before[::-1].index(_TRACEBACK)
    return child if any(EXCEPTION.search(line) for line in lines[at:child]) else at


def _first_match(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := pattern.match(line))), None)
