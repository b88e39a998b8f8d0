"""`python -m muster.local.build_report RUN_DIR JOB PARENT_PID`: build one report, slowly and modestly.

A process of its own, so that reading large traces neither blocks the daemon nor can take it down.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main(run_dir: Path, job: str, parent: int) -> int:
    """0 when the report is there."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the next daemon builds it anew
    if os.getppid() != parent:
        return 1
    os.nice(10)
    from muster.errors import InvalidTrace
    from muster.tracing.report import build
    from muster.tracing.spool_collector import collect_abandoned

    try:
        collect_abandoned(run_dir, time.time())
    except OSError as error:  # a full disk, perhaps: the report reads what nobody collected as well
        print(f"what dead collectors left behind stays where it is: {error}", file=sys.stderr)
    try:
        build(run_dir, name=job, workers=len(os.sched_getaffinity(0)))
    except (InvalidTrace, OSError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
