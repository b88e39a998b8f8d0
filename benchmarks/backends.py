"""Training steps of five models with eager PyTorch, two backends of torch.compile, and the trainer ("ours").

    python benchmarks/backends.py --model gpt2 --backend inductor [--json FILE]
    python benchmarks/backends.py --all --time-limit 60 --json FILE

Each cell runs in a process of its own, the same model with the same weights and batches in all of them. The batches
are on the device before: reading data is not measured. `eager`, `cudagraphs` and `inductor` are the usual loop
(autocast in bf16, torch.compile of the whole model, gradient clipping, fused AdamW). `ours` is the trainer's step with
its defaults, for models other than recipes with `--compile --cuda_graph`. A step is timed on the device, from the end
of the step before. The file gets one line for each cell; the table has all cells of the file, also of earlier runs.

MFU: the FLOPs of forward and backward divided by time and peak of dense bf16; for GPT by the PaLM paper's formula (its
appendix B, as nanoGPT), for the others counted by torch's FlopCounterMode. `loss` is the largest difference of the
first 20 losses from those of eager; the losses of a model with dropout are compared without dropout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the parts in benchmarks.backend_rows

MODELS = ("gpt2", "char", "vit", "resnet50", "lstm")
BACKENDS = ("eager", "cudagraphs", "inductor", "ours")

Cell = dict[str, Any]


def main() -> int:
    """Measure the chosen cells and print the table; 1 if a cell failed."""
    flags = _parse_flags()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(flags.json or Path(folder) / "cells.jsonl")
        failed = []
        chosen = [(model, backend) for model in flags.model or MODELS for backend in flags.backend or BACKENDS]
        if len(chosen) == 1:
            _measure_here(*chosen[0], flags, file)
        else:
            failed = [
                f"{model} {backend}" for model, backend in chosen if not _measure_apart(model, backend, flags, file)
            ]
        cells = read_cells(file)
    print(table(cells))
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


def read_cells(file: Path) -> list[Cell]:
    """The newest of each model and backend."""
    lines = file.read_text().splitlines() if file.exists() else []
    cells = {(cell["model"], cell["backend"]): cell for cell in map(json.loads, lines)}
    return list(cells.values())


def table(cells: list[Cell]) -> str:
    """One line for each cell, in the order of MODELS and BACKENDS."""
    eager = {cell["model"]: cell["losses"] for cell in cells if cell["backend"] == "eager"}
    lines = [
        f"{'model':<9} {'backend':<10} {'ms':>9} {'± ms':>7} {'n':>5} {'MFU':>6} {'GiB':>6} {'first s':>8} {'loss':>8}"
    ]
    for cell in sorted(cells, key=lambda cell: (MODELS.index(cell["model"]), BACKENDS.index(cell["backend"]))):
        used = "" if cell["mfu"] is None else f"{cell['mfu']:.1%}"
        memory = "" if cell["peak_gib"] is None else f"{cell['peak_gib']:.1f}"
        difference = loss_difference(cell["losses"], eager.get(cell["model"]))
        lines.append(
            f"{cell['model']:<9} {cell['backend']:<10} {cell['mean_ms']:>9.3f} {cell['stdev_ms']:>7.3f}"
            f" {cell['iterations']:>5} {used:>6} {memory:>6} {cell['first_step_s']:>8.1f}"
            f" {'' if difference is None else format(difference, '.4f'):>8}"
        )
    return "\n".join(lines)


def loss_difference(losses: list[float], others: list[float] | None) -> float | None:
    """The largest difference of two curves in nats, in the steps that both have; None without other losses."""
    return None if others is None else max(abs(a - b) for a, b in zip(losses, others, strict=False))


def _parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only this row; may be repeated")
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="only this column; may be repeated")
    parser.add_argument("--all", action="store_true", help="all cells of the table")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=30, help="steps before; at least 2")
    parser.add_argument("--time-limit", type=float, help="seconds for a cell with its warm-up: fewer iterations then")
    parser.add_argument("--json", metavar="FILE", help="add the cells to this file")
    parser.add_argument("--tiny", action="store_true", help="sizes for a test on a CPU")
    flags = parser.parse_args()
    if flags.all == bool(flags.model or flags.backend):
        parser.error("choose --model, --backend or both, or else --all")
    if flags.iterations < 1 or flags.warmup < 2:
        parser.error(f"--iterations must be at least 1 and --warmup at least 2; got {flags.iterations}, {flags.warmup}")
    return flags


def _measure_here(model: str, backend: str, flags: argparse.Namespace, file: Path) -> None:
    if backend == "ours":
        from muster_components.trainer.__main__ import prepare_environment

        prepare_environment(os.environ)
    # Imported late, since torch reads the environment on import.
    from benchmarks.backend_rows.cell import Amount, measure_cell

    amount = Amount(iterations=flags.iterations, warmup=flags.warmup, limit_s=flags.time_limit)
    cell = measure_cell(model, backend, amount, tiny=flags.tiny)
    with file.open("a") as stream:
        stream.write(json.dumps(cell) + "\n")


def _measure_apart(model: str, backend: str, flags: argparse.Namespace, file: Path) -> bool:
    """Whether the cell was measured; the process prints its own error."""
    command = [sys.executable, __file__, "--model", model, "--backend", backend, "--json", str(file)]
    command += ["--iterations", str(flags.iterations), "--warmup", str(flags.warmup)]
    command += [] if flags.time_limit is None else ["--time-limit", str(flags.time_limit)]
    command += ["--tiny"] if flags.tiny else []
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        newest = [cell for cell in read_cells(file) if (cell["model"], cell["backend"]) == (model, backend)]
        print(table(newest), flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
