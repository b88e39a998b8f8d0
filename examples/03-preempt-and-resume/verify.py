"""Checks that every step was done once, in order, over two attempts; exits with an error otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

lines = [json.loads(line) for line in (Path(sys.argv[1]) / "metrics" / "rank-0.jsonl").read_text().splitlines()]
steps = [line["step"] for line in lines]
attempts = sorted({line["attempt"] for line in lines})

first_step = steps[0]
if steps != list(range(first_step, first_step + len(steps))):
    sys.exit(f"steps were repeated, skipped or out of order: {steps}")
if len(attempts) != 2:
    sys.exit(f"there must be two attempts; got {attempts}")
before = [line for line in lines if line["attempt"] == attempts[0]]
after = [line for line in lines if line["attempt"] == attempts[1]]
print(f"all {len(steps)} steps were done once: {len(before)} before the preemption, {len(after)} after")
print(f"loss {before[0]['loss']:.3f} at the start, {after[-1]['loss']:.3f} at the end")
print(f"loss {before[-1]['loss']:.3f} before the preemption, {after[0]['loss']:.3f} after it")
if after[0]["loss"] > (before[0]["loss"] + before[-1]["loss"]) / 2:
    sys.exit("the loss started again from its initial value: the weights were not resumed")
