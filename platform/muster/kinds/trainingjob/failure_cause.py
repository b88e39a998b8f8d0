"""The cause of a failure in a few words, with rank and place, and what to try after one that is frequent.

What a job's status keeps of the failure is all that is read: exit code, reason, and the end of the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster.api.spec import LastFailure
from muster.kinds.trainingjob.failure_log import (
    failed_rank,
    is_error_line,
    last_log_line,
    lines_of,
    signal_of_launcher,
)

_MAX_CAUSE = 160
_FRAME = re.compile(r'File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
_RANK_MARK = re.compile(r"^\[\w{0,64}?(?P<rank>\d{1,6})\]:? ?")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/muster_components/", "<", "/lib/python")
_DEVICE_MEMORY = re.compile(r"\b(CUDA|HIP|XPU) out of memory")
_GPU_MEMORY = re.compile(rf"{_DEVICE_MEMORY.pattern}|\bOutOfMemoryError\b|CUBLAS_STATUS_ALLOC_FAILED")
_HOST_MEMORY = re.compile(r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory")
_OOM_KILLED, _SIGKILL = "OOMKilled", 137
_TRY_ON_GPU = (
    "less memory on the GPU: a smaller batch per GPU, recomputed activations, shards (FSDP) on more GPUs, and"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation; muster memory shows who holds it in a"
    " snapshot"
)
_TRY_ON_HOST = "a higher memory request and limit of the pod, or fewer data workers and smaller prefetch buffers"


def failure_cause(failure: LastFailure | None) -> str:
    """`rank 1: CUDA out of memory in train.py:12`, as far as known; empty if the log names no error."""
    if failure is None:
        return ""
    if failure.reason == _OOM_KILLED:
        return "out of memory: the container exceeded its memory limit"
    line, rank = last_log_line(failure), failed_rank(failure)
    who = "" if rank is None else f"rank {rank}: "
    if not is_error_line(line) and not _GPU_MEMORY.search(line):
        killed = signal_of_launcher(failure)
        return f"{who}{killed}" if killed else ""
    place = _place(failure, rank)
    return f"{who}{_shorten(line)}{f' in {place}' if place else ''}"


def what_to_try(failure: LastFailure | None) -> str:
    """What to try after a failure for lack of memory; empty after others."""
    if failure is None:
        return ""
    line = last_log_line(failure)
    if _GPU_MEMORY.search(line):
        return _TRY_ON_GPU
    if failure.reason == _OOM_KILLED or _HOST_MEMORY.search(line):
        return _TRY_ON_HOST
    if failure.exit_code == _SIGKILL and not is_error_line(line):
        return f"unless it was killed on purpose, the host lacked memory (see dmesg): {_TRY_ON_HOST}"
    return ""


def _shorten(line: str) -> str:
    """An error without what follows its first sentence, if it is one of memory."""
    if _GPU_MEMORY.search(line):
        device = _DEVICE_MEMORY.search(line)
        return f"{device[1] if device else 'GPU'} out of memory"
    return line if len(line) <= _MAX_CAUSE else f"{line[: _MAX_CAUSE - 1].rstrip()}…"


def _place(failure: LastFailure, rank: int | None) -> str:
    """File and line of the last frame of the user's own code in the last traceback, such as train.py:12."""
    found = ""
    for line in _lines_of_rank(failure, rank):
        frame = _FRAME.search(line)
        if frame is not None and not any(one in frame["file"] for one in _LIBRARIES):
            found = f"{frame['file'].rpartition('/')[2]}:{frame['line']}"
    return found


def _lines_of_rank(failure: LastFailure, rank: int | None) -> Iterator[str]:
    """The lines of one rank: those of rank 0 have no mark. All lines if the rank is not known."""
    for line in lines_of(failure):
        marked = _RANK_MARK.match(line)
        if rank is None or (int(marked["rank"]) if marked else 0) == rank:
            yield line
