"""Checks that every step was done once, in order, over at least two attempts; exits with an error otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

lines = [json.loads(line) for line in (Path(sys.argv[1]) / "metrics" / "rank-0.jsonl").read_text().splitlines()]
steps = [line["step"] for line in lines]
attempts = sorted({line["attempt"] for line in lines})

if steps != list(range(1, int(sys.argv[2]) + 1)):
    sys.exit(f"steps were repeated, skipped or out of order: {steps}")
if len(attempts) < 2:
    sys.exit(f"the job was never evicted: attempts {attempts}")
first = [line["step"] for line in lines if line["attempt"] == attempts[0]]
print(f"all {len(steps)} steps were done once: {len(first)} before the eviction, {len(steps) - len(first)} after")
