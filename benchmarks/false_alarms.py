"""How often clean runs get a verdict, and whether a slow data loader is found: two ranks on the CPU (gloo).

    python benchmarks/false_alarms.py --runs 20 --json
    python benchmarks/false_alarms.py --slow-loader-ms 50        # rank 1 sleeps before each step

Each run trains `gpt:1m`, traces 8 steps of both ranks and analyses them. It reports counts and asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.runs.run_folder import read_run_folder

LAYOUTS = {
    "fsdp": ("--parallel", "fsdp"),
    "ddp": ("--parallel", "ddp"),
    "pp": ("--parallel", "pp=2"),
    "pp-gpipe": ("--parallel", "pp=2", "--pipeline_schedule", "GPipe"),
    "pp-interleaved": ("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B"),
}
FLAGS = [
    "--model",
    "gpt:1m",
    "--seq_len",
    "64",
    "--global_batch",
    "8",
    "--no_compile",
    "--steps",
    "16",
    "--trace_steps",
    "6:14",
]
SLOW_RANK = 1
_RANK = f"""
import os, sys, time
from muster_components.trainer.__main__ import main
from muster_components.trainer.forward_backward import BatchReader
read, sleep_s = BatchReader.read, float(os.environ["SLOW_LOADER_S"])
def slow_read(self, step):
    if os.environ["RANK"] == "{SLOW_RANK}":
        time.sleep(sleep_s)
    return read(self, step)
BatchReader.read = slow_read
sys.exit(main(sys.argv[1:]))
"""


@dataclass(slots=True)
class LayoutCounts:
    """The runs of one layout: those with any verdict, those with one against a rank, and verdicts by rank and cause."""

    layout: str
    runs: int = 0
    failed: int = 0
    with_verdict: int = 0
    against_a_rank: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)


def train(folder: Path, layout: str, slow_loader_ms: float) -> bool:
    """Run two ranks with a trace; False if they failed."""
    text, script, run_dir = folder / "text.txt", folder / "rank.py", folder / "run"
    words = random.Random(0).choices([f"word{i}" for i in range(500)], k=100_000)
    text.write_text(" ".join(words))
    script.write_text(_RANK)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    environ = {
        **ours,
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_CACHE_DIR": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "SLOW_LOADER_S": str(slow_loader_ms / 1e3),
    }
    command = [sys.executable, "-m", "muster_components.launch", "--nproc", "2", "--", str(script)]
    ended = subprocess.run(
        [*command, *FLAGS, "--data", str(text), *LAYOUTS[layout]], env=environ, capture_output=True, check=False
    )
    return ended.returncode == 0


def count(layout: str, runs: int, slow_loader_ms: float) -> LayoutCounts:
    """Train and analyse `runs` times."""
    counts = LayoutCounts(layout)
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if not train(folder, layout, slow_loader_ms):
                counts.failed += 1
                continue
            verdicts = analyse_run(read_run_folder(folder / "run")).verdicts
        counts.runs += 1
        counts.with_verdict += bool(verdicts)
        counts.against_a_rank += any(verdict.ranks for verdict in verdicts)
        print(f"{layout}: run {counts.runs}, {len(verdicts)} verdicts", file=sys.stderr, flush=True)
        counts.verdicts.update(f"{verdict.cause} {list(verdict.ranks) or 'all'}" for verdict in verdicts)
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="runs of each layout")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="default: fsdp, ddp, pp")
    parser.add_argument("--slow-loader-ms", type=float, default=0.0, help=f"sleep of rank {SLOW_RANK} before each step")
    parser.add_argument("--json", action="store_true", dest="as_json")
    args = parser.parse_args(argv)
    found = [count(layout, args.runs, args.slow_loader_ms) for layout in args.layout or ("fsdp", "ddp", "pp")]
    if args.as_json:
        print(json.dumps([asdict(counts) for counts in found], indent=1))
        return 0
    for counts in found:
        causes = ", ".join(f"{cause}: {number}" for cause, number in counts.verdicts.most_common()) or "none"
        print(
            f"{counts.layout:<15} {counts.runs} runs ({counts.failed} failed), with a verdict {counts.with_verdict}, "
            f"against a rank {counts.against_a_rank}; verdicts: {causes}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
