"""`python -m muster_components.bench PLAN`, in a pod: see runner.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from muster_components.bench.plan import InvalidPlan, parse_plan
from muster_components.bench.runner import main

EXIT_USAGE = 2

if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            raise InvalidPlan(f"exactly one argument is expected; got {len(sys.argv) - 1}")
        runs = parse_plan(sys.argv[1])
    except InvalidPlan as error:
        print(f"bench: {error}", file=sys.stderr, flush=True)
        sys.exit(EXIT_USAGE)
    sys.exit(main(runs, Path(os.environ.get("MUSTER_RUN_DIR", "muster-run"))))
