"""Predicted memory and speed beside what the trainer measures, on this machine's GPUs.

    python benchmarks/planning.py [--gpus 2] [--case NAME ...] [--steps 20] [--json]
    python benchmarks/planning.py --top 4 [--gpus 2] --model gpt:1b --seq_len 1024 --global_batch 64

Without `--top`: the cases of the number of GPUs. With it: the plans that `--parallel auto` ranks first, to see whether
the first is the fastest; other flags go to the trainer. Each row is one run of the trainer on this machine's standard
library as text. `GiB` is the peak of torch's allocator on rank 0, `ms` the median of the steps after the eighth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

LLAMA = "--model llama:8b --vocab_size 128256 --seq_len 8192"
CASES: dict[int, dict[str, str]] = {
    1: {
        "gpt2": "--model gpt2:124m --vocab_size 50304 --global_batch 64",
        "gpt2-eager": "--model gpt2:124m --vocab_size 50304 --global_batch 32 --no_compile",
        "350m": "--model gpt:350m --global_batch 32",
        "1b": "--model gpt:1b --global_batch 16",
        "1b-full": "--model gpt:1b --global_batch 32 --activation_checkpointing full",
        "hf-gpt2": "--model hf:gpt2 --global_batch 32",
    },
    2: {
        "gpt2-ddp": "--model gpt2:124m --vocab_size 50304 --global_batch 128 --parallel ddp",
        "1b": "--model gpt:1b --global_batch 64",
        "1b-tp": "--model gpt:1b --global_batch 32 --parallel tp=2",
        "1b-pp": "--model gpt:1b --global_batch 64 --parallel pp=2 --pipeline_schedule Interleaved1F1B",
        "8b": f"{LLAMA} --global_batch 2 --activation_checkpointing selective",
        "8b-none": f"{LLAMA} --global_batch 4 --micro_batch 1",
    },
}
WARM_UP = 8
TRAINER = "muster_components.trainer"


@dataclass(frozen=True, slots=True)
class Row:
    """One run; memory in bytes, time in seconds. None: the run failed."""

    name: str
    predicted_bytes: float
    predicted_s: float
    measured_bytes: float | None
    measured_s: float | None


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2))
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--top", type=int, help="measure so many plans of --parallel auto")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", help="GPU to plan for (default: this machine's)")
    parser.add_argument("--json", action="store_true")
    flags, trainer_flags = parser.parse_known_args()
    if flags.steps <= WARM_UP:
        parser.error(f"--steps must be above {WARM_UP}; got {flags.steps}")
    device = ["--device", flags.device] if flags.device else []
    if flags.top:
        shared = [flag for flag in trainer_flags if flag != "--"]
        plans = predict([*shared, "--parallel", "auto", *device], flags.gpus)
        runs = [(" ".join(plan["flags"]), [*shared, *plan["flags"]], plan) for plan in plans[: flags.top]]
    else:
        cases = {name: CASES[flags.gpus][name].split() for name in flags.case or CASES[flags.gpus]}
        runs = [(name, case, predict([*case, *device], flags.gpus)[0]) for name, case in cases.items()]
    rows = []
    for name, run_flags, plan in runs:
        measured_bytes, measured_s = measure(run_flags, flags.gpus, flags.steps) or (None, None)
        rows.append(Row(name, sum(plan["tensor_bytes"].values()), plan["step_s"], measured_bytes, measured_s))
        print(json.dumps(vars_of(rows[-1])) if flags.json else line(rows[-1]), flush=True)


def predict(flags: list[str], gpus: int) -> list[dict[str, Any]]:
    """What `--plan --json` prints; exit code 2 only says that nothing fits."""
    command = [sys.executable, "-m", TRAINER, *flags, "--plan", f"1x{gpus}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    plans: list[dict[str, Any]] = json.loads(done.stdout)
    return plans


def measure(flags: list[str], gpus: int, steps: int) -> tuple[float, float] | None:
    """Peak bytes and median seconds of a step of one run; None if it failed, with the end of its output printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
        command += ["-m", TRAINER, *flags, "--data", sysconfig.get_path("stdlib"), "--output", folder]
        command += ["--steps", str(steps), "--keep", "0", "--no_memory_check"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        heartbeat = Path(folder) / "heartbeats" / "rank-0.json"
        if done.returncode or not heartbeat.exists():
            print(done.stdout[-2000:], file=sys.stderr)
            return None
        lines = (Path(folder) / "metrics" / "rank-0.jsonl").read_text().splitlines()
        seconds = [step["step_time_s"] for step in map(json.loads, lines) if step["step"] > WARM_UP]
        return float(json.loads(heartbeat.read_text())["peak_memory_bytes"]), median(seconds)


def vars_of(row: Row) -> dict[str, object]:
    """A row as JSON values."""
    return {name: getattr(row, name) for name in Row.__slots__}


def line(row: Row) -> str:
    """A row as text."""
    if row.measured_bytes is None or row.measured_s is None:
        return f"{row.name:<12} failed"
    gib = 1024**3
    return (
        f"{row.name:<12} GiB {row.predicted_bytes / gib:6.1f} predicted {row.measured_bytes / gib:6.1f} measured"
        f" {row.predicted_bytes / row.measured_bytes - 1:+6.1%}   ms {1000 * row.predicted_s:8.1f} predicted"
        f" {1000 * row.measured_s:8.1f} measured {row.predicted_s / row.measured_s - 1:+6.1%}"
    )


if __name__ == "__main__":
    main()
