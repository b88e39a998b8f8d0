"""A suite whose program takes the time that its environment says, without depending on the machine."""

from __future__ import annotations

from pathlib import Path

PROGRAM = """\
import json, os, time
with open(os.environ["MUSTER_BENCH_FILE"], "w") as file:
    for number in range(4):
        print(json.dumps({"wall_s": float(os.environ.get("TIME", "0.5"))}), file=file)
time.sleep(float(os.environ.get("SLEEP", "0")))
"""
SUITE = """\
name: gate
criteria: {minRuns: 6, maxRuns: 8}
benchmarks:
- {name: one, command: [python, -I, -S, program.py], warmup: 1}
"""


def write_suite(folder: Path, program: str = PROGRAM, suite: str = SUITE) -> Path:
    """The suite's file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.py").write_text(program)
    (folder / "suite.yaml").write_text(suite)
    return folder / "suite.yaml"
