"""Checks that the second run's first loss is closer to the first run's last loss than to its first."""

import json
import sys
from pathlib import Path


def losses(folder: str) -> list[float]:
    """Those of the run's steps."""
    lines = (Path(folder) / "metrics" / "rank-0.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


first, second = losses(sys.argv[1]), losses(sys.argv[2])
if abs(second[0] - first[-1]) > 0.5 * abs(first[0] - first[-1]):
    sys.exit(f"the second run must begin near {first[-1]:.2f}; got {second[0]:.2f}")
print(f"loss {first[0]:.2f} -> {first[-1]:.2f}, then from the saved weights {second[0]:.2f} -> {second[-1]:.2f}")
