"""Checks that two runs had the same losses, which have fallen."""

import json
import sys
from pathlib import Path


def losses(folder: str) -> list[float]:
    """The loss of each step."""
    lines = (Path(folder) / "metrics" / "rank-0.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


staged, whole = map(losses, sys.argv[1:3])
largest = max(abs(one - other) for one, other in zip(staged, whole, strict=True))
if largest > 1e-3:
    sys.exit(f"the losses must differ by at most 0.001; got {largest:.4f}")
if staged[-1] > 0.8 * staged[0]:
    sys.exit(f"the loss must fall to 0.8 of {staged[0]:.2f}; got {staged[-1]:.2f}")
print(f"{len(staged)} steps, loss {staged[0]:.2f} -> {staged[-1]:.2f}; largest difference {largest:.6f}")
