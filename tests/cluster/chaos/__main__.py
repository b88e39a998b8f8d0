"""Chaos from a shell.

python -m tests.cluster.chaos --seed 7 --jobs 1000 --nodes 200 --minutes 8
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.story import play
from tests.cluster.controlplane.binaries import Unavailable


def main() -> int:
    """Return the exit code: 0 when every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="what happens follows from it; left out: a new one, which is printed")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=8.0, help="jobs come and things break for so long")
    parser.add_argument("--folder", type=Path, help="for logs and the report; left out: a new one below /tmp")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    size = Size(seed, asked.jobs, asked.nodes, busy_s=60 * asked.minutes)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="muster-chaos-"))
    print(f"again: make chaos SEED={seed} JOBS={size.jobs} NODES={size.nodes} MINUTES={asked.minutes:g}")
    print(f"logs and report: {folder}", flush=True)
    try:
        verdict = play(size, folder, lambda line: print(line, flush=True))
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(verdict.text())
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
