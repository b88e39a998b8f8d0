"""How often `muster bench compare` alarms without a change, and finds a planted slowdown.

    python benchmarks/gate.py --pairs 100
    python benchmarks/gate.py --pairs 20 --device cuda

A pair are two comparisons: of a program with itself, and with the same program made slower. Their runs are
interleaved in blocks of three (unchanged, unchanged again, slower) in random order, and end by the criteria of `muster
bench`. Each pair is a line of the file --out, so that an interrupted run is continued; --table only prints the table.
On the CPU each run is a new process, started by the runner of benchmark jobs. On a GPU it is forked from a process that
has imported torch, since the import takes longer than the measurement; the context of the GPU is new in each run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gate_program import UNITS, send_torch_times

from muster.bench.statistics import Criteria, Outcome, RatioInterval, paired_ratio
from muster_components.bench.plan import BenchmarkProgram, Run
from muster_components.bench.runner import Runner

ARMS = ("A", "A again", "B")
METRICS = {
    "wall": "median wall time of a run's iterations",
    "wall_q1": "lower quartile of the wall times",
    "cpu": "median CPU time of a run's iterations",
    "cpu_q1": "lower quartile of the CPU times",
    "total_cpu": "CPU time of the whole process",
}
WARMUP_SHARE = 0.25
"""Of the iterations of a run, at its start: they do not count."""
Measure = Callable[[int], dict[str, float]]


def summarise(times: Sequence[tuple[float, float]], total_cpu_s: float) -> dict[str, float]:
    """The metrics of one run."""
    wall, cpu = zip(*times[round(WARMUP_SHARE * len(times)) :], strict=True)
    return {
        "wall": median(wall),
        "wall_q1": float(np.quantile(wall, 0.25)),
        "cpu": median(cpu),
        "cpu_q1": float(np.quantile(cpu, 0.25)),
        "total_cpu": total_cpu_s,
    }


def on_cpu(folder: Path) -> Measure:
    """Start the program by the runner of benchmark jobs."""
    runner = Runner(folder, {})
    (folder / "bench").mkdir()
    script = str(Path(__file__).with_name("gate_program.py"))

    def measured(work: int) -> dict[str, float]:
        command = [sys.executable, "-I", "-S", script, str(work)]
        record = runner.execute(Run(BenchmarkProgram(name="gate", benchmark="gate", command=command), 0))
        if record.error:
            raise SystemExit(record.error)
        return summarise(list(zip(record.wall_s, record.cpu_s, strict=True)), record.total_cpu_s)

    return measured


def forked(device: str, iterations: int, matrix: int) -> Measure:
    """Run the torch program in a process that is forked from one that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])

    def measured(work: int) -> dict[str, float]:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=send_torch_times, args=(sender, device, work, iterations, matrix))
        process.start()
        sender.close()
        try:
            times = receiver.recv()
        except EOFError:
            raise SystemExit(f"the program ended before it had measured on {device}") from None
        process.join()
        return summarise(times, sum(cpu for _, cpu in times))

    return measured


def run_pair(measure: Measure, slowdown: float, criteria: Criteria, rng: random.Random) -> dict[str, Any]:
    """The metrics of the runs of both comparisons, by arm."""
    began = time.monotonic()
    runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    blocks = 0
    while missing := max(
        criteria.missing_pairs(interval(runs, "wall", arm, criteria) if blocks else None, blocks) for arm in ARMS[1:]
    ):
        for _ in range(missing):
            for arm in rng.sample(ARMS, len(ARMS)):
                runs[arm].append(measure(round(UNITS * slowdown) if arm == "B" else UNITS))
        blocks += missing
    return {"blocks": blocks, "seconds": time.monotonic() - began, "runs": runs}


def interval(runs: dict[str, list[dict[str, float]]], metric: str, arm: str, criteria: Criteria) -> RatioInterval:
    """The ratio of an arm to A."""
    sides = ([run[metric] for run in runs[one]] for one in ("A", arm))
    return paired_ratio(*sides, criteria.false_alarm_rate)


def table(pairs: Sequence[dict[str, Any]], slowdown: float, criteria: Criteria) -> str:
    """The rates by metric, as Markdown."""
    found_in = f"{slowdown - 1:.1%} slower: found of {len(pairs)}"
    lines = [
        f"| metric | A/A: alarms (slower, faster) of {len(pairs)} | {found_in} | median estimate | median half-width |",
        "|---|---|---|---|---|",
    ]
    for metric, meaning in METRICS.items():
        same = [criteria.decide(interval(pair["runs"], metric, "A again", criteria)) for pair in pairs]
        slower = [interval(pair["runs"], metric, "B", criteria) for pair in pairs]
        found = sum(criteria.decide(one) == Outcome.REGRESSION for one in slower)
        alarms = same.count(Outcome.REGRESSION), same.count(Outcome.IMPROVEMENT)
        estimate, width = median(one.ratio - 1 for one in slower), median(one.half_width for one in slower)
        lines.append(f"| {meaning} | {alarms[0]}, {alarms[1]} | {found} | {estimate:+.1%} | {width:.1%} |")
    blocks, seconds = median(pair["blocks"] for pair in pairs), sum(pair["seconds"] for pair in pairs)
    return "\n".join([*lines, f"\nRuns of each side: median {blocks:g}. Measured in {seconds:,.0f} s."])


def main() -> None:
    """Measure the missing pairs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--slowdown", type=float, default=1.03)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--min-runs", type=int, help="of each side; default 12, with a GPU 6")
    parser.add_argument("--max-runs", type=int, default=24, help="of each side")
    parser.add_argument("--iterations", type=int, default=80, help="of a run on a GPU")
    parser.add_argument("--matrix", type=int, default=2048, help="size of the matrices on a GPU")
    parser.add_argument("--out", type=Path, help="default: gate-DEVICE.jsonl")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="begin no pair later")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    out = options.out or Path(f"gate-{options.device}.jsonl")
    minimum = options.min_runs or (6 if options.device == "cuda" else 12)
    criteria = replace(Criteria(), min_pairs=minimum, max_pairs=max(minimum, options.max_runs))
    pairs = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, out.open("a") as file:
        measure = (
            forked("cuda", options.iterations, options.matrix) if options.device == "cuda" else on_cpu(Path(folder))
        )
        while not options.table and len(pairs) < options.pairs and time.monotonic() - began < options.time_limit:
            pair = run_pair(measure, options.slowdown, criteria, random.Random(len(pairs)))
            pairs.append(pair)
            file.write(json.dumps(pair) + "\n")
            file.flush()
            print(f"pair {len(pairs)}: {pair['blocks']} blocks in {pair['seconds']:.1f} s", file=sys.stderr, flush=True)
    if pairs:
        print(table(pairs, options.slowdown, criteria))


if __name__ == "__main__":
    main()
