"""`python -m muster.local.build_report RUN_DIR JOB PARENT_PID`: builds one report at low priority.

It is a separate process, so that reading large traces cannot block or kill the daemon.
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
    """Exit code: 0 if the report was built."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the next daemon builds it again
    if os.getppid() != parent:
        return 1
    os.nice(10)
    from muster.errors import InvalidTrace
    from muster.tracing.report import build
    from muster.tracing.spool_collector import collect_abandoned

    try:
        collect_abandoned(run_dir, time.time())
    except OSError as error:  # for example a full disk: the report also reads traces that were not collected
        print(f"traces of terminated collectors were not collected: {error}", file=sys.stderr)
    try:
        build(run_dir, name=job, workers=len(os.sched_getaffinity(0)))
    except (InvalidTrace, OSError) as error:
        print(f"no report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
