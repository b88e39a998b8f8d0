"""Checks that a run has done its steps, and that its loss has fallen to a part of the first one."""

import json
import sys
from pathlib import Path

folder, steps, part = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
lines = [json.loads(line) for line in (Path(folder) / "metrics" / "rank-0.jsonl").read_text().splitlines()]
losses = [line["loss"] for line in lines]
if [line["step"] for line in lines] != list(range(1, steps + 1)):
    sys.exit(f"the steps must be 1 to {steps}; got {[line['step'] for line in lines]}")
last = sum(losses[-(steps // 10) :]) / (steps // 10)
if last > part * losses[0]:
    sys.exit(f"the loss must fall to {part} of {losses[0]:.2f}; got {last:.2f}")
print(f"{steps} steps, loss {losses[0]:.2f} -> {last:.2f}")
