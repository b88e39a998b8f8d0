"""The chaos test from a shell.

python -m tests.cluster.chaos --seed 7 --jobs 1000 --nodes 200 --minutes 8
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.cluster.chaos.driver.run import run_chaos
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.controlplane.binaries import Unavailable


def main() -> int:
    """Return the exit code: 0 when every guarantee was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="determines jobs and faults (default: a random one, which is printed)")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8.0, help="how long jobs are submitted and faults injected")
    parser.add_argument("--folder", type=Path, help="for logs and the report (default: a new one below /tmp)")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    size = Size(seed, arguments.jobs, arguments.nodes, fault_s=60 * arguments.minutes)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    print(f"repeat with: make chaos SEED={seed} JOBS={size.jobs} NODES={size.nodes} MINUTES={arguments.minutes:g}")
    print(f"logs and report: {folder}", flush=True)
    try:
        result = run_chaos(size, folder, lambda line: print(line, flush=True))
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(result.text())
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
