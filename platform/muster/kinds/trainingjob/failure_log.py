"""The line of a failed pod's log that best explains the failure, from the end of the log that a job's status keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from muster.api.spec import LastFailure
from muster.text import sanitize

_LAUNCHER_SUMMARY = re.compile(
    r"^muster: rank (?P<rank>\d{1,9}) failed first, after [\d.]+ s: (?:.*; its last line: )?"
    r"(?:\[rank\d{1,9}\]: )?(?P<why>.+)$"  # torch marks the lines of an exception with [rankN]:
)
_KILLED = re.compile(r"^muster: rank \d{1,9} failed first, after [\d.]+ s: (killed by SIG\w+(?: \(out of memory\?\))?)")
_EXCEPTION = re.compile(r"\b(?!ChildFailedError)\w+(Error|Exception|Interrupt): ")
"""A line that names an exception other than torchrun's own, which does not name the cause."""
_ERROR_LINE = re.compile(r"\b\w*(Error|Exception|Interrupt)\b|\berror: ")
_TRACEBACK = "Traceback (most recent call last):"
_ROOT_CAUSE = "Root Cause (first observed failure):"
_RANK = re.compile(r"^rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_EXIT_CODE = re.compile(r"^exitcode\s*: (?P<code>-?\d+)")
_RANK_PREFIX = re.compile(r"^\[\w{0,64}?(?P<local>\d{1,6})\]: ?")  # of a rank's line, with --tee
_LAUNCHER_OUTPUT = re.compile(
    r"^[IWE]\d{4} [\d:.]+ \d+ \S*torch/distributed/|^Setting OMP_NUM_THREADS environment variable"
)


def last_log_line(failure: LastFailure | None) -> str:
    """The log line that best explains a failure; empty if nothing failed or nothing was written.

    In this order: the reason in the summary of Muster's launcher; the output of the rank that failed first if torchrun
    printed its summary; the last exception if the last line is a rule; the last line.
    """
    texts = lines_of(failure)
    last = _root_cause_line(texts) or (texts[-1] if texts else "")
    if last and not any(letter.isalnum() for letter in last):
        lines_with_text = [text for text in texts if any(letter.isalnum() for letter in text)]
        fallback = lines_with_text[-1] if lines_with_text else last
        last = next((text for text in reversed(lines_with_text) if _EXCEPTION.search(text)), fallback)
    summary = _LAUNCHER_SUMMARY.match(last)
    return summary["why"] if summary else last


def lines_of(failure: LastFailure | None) -> list[str]:
    """The lines of the log that are not empty, as a terminal would show them."""
    lines = failure.log_tail.splitlines() if failure is not None else ()
    return [text for line in lines if (text := _clean_line(line))]


def failed_rank(failure: LastFailure) -> int | None:
    """The rank that failed first, as the launcher or torchrun says; None if neither does."""
    lines = lines_of(failure)
    for line in reversed(lines):
        summary = _LAUNCHER_SUMMARY.match(line)
        if summary is not None:
            return int(summary["rank"])
    begin = lines.index(_ROOT_CAUSE) if _ROOT_CAUSE in lines else None
    found = None if begin is None else _first_match(_RANK, lines[begin:])
    return None if found is None else int(found["rank"])


def signal_of_launcher(failure: LastFailure) -> str:
    """`killed by SIGKILL (out of memory?)`, as the launcher says of the rank that failed first; empty otherwise."""
    found = (_KILLED.match(line) for line in reversed(lines_of(failure)))
    return next((killed[1] for killed in found if killed is not None), "")


def is_error_line(line: str) -> bool:
    """Whether a line of a log names an error, as those of Python and of argparse: it says more than an exit code."""
    return _ERROR_LINE.search(line) is not None


def _clean_line(line: str) -> str:
    """A line as a terminal would show it, without colours and cursor movements."""
    return sanitize(line).replace("\t", " ").strip()


def _root_cause_line(lines: Sequence[str]) -> str | None:
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
    exception = next((text for text in (*reversed(words), *cause) if _EXCEPTION.search(text)), None)
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
    return child if any(_EXCEPTION.search(line) for line in lines[at:child]) else at


def _first_match(pattern: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    return next((found for line in lines if (found := pattern.match(line))), None)
