"""The times per iteration that a program recorded: lines of `MUSTER_BENCH_FILE`, or the metrics of Muster's trainer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_ITERATIONS = 100_000
_RANK_METRICS = re.compile(r"rank-\d+\.jsonl")


class NoIterations(ValueError):
    """The program recorded nothing, or something else than times."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Seconds per iteration in order; `cpu_s` is empty if the program did not record CPU times."""

    wall_s: list[float]
    cpu_s: list[float]


def read_iterations(bench_file: Path, run_dir: Path) -> Iterations:
    """The iterations of a run. Raises NoIterations that says what was expected, with file and line."""
    if bench_file.exists():
        return _from_lines(bench_file)
    steps: dict[int, float] = {}
    for file in sorted((run_dir / "metrics").glob("rank-*.jsonl")):
        if _RANK_METRICS.fullmatch(file.name):
            for step, seconds in _metrics(file):  # a step ends when its slowest rank ends
                steps[step] = max(seconds, steps.get(step, 0.0))
    if not steps:
        raise NoIterations(
            "the program recorded no iteration: it must append lines such as "
            '{"wall_s": 0.012, "cpu_s": 0.011} to the file named by MUSTER_BENCH_FILE, or be Muster\'s trainer'
        )
    return Iterations([steps[step] for step in sorted(steps)], [])


def _from_lines(file: Path) -> Iterations:
    wall, cpu = [], []
    for number, line in _lines(file):
        entry = _object(line)
        where = f"MUSTER_BENCH_FILE, line {number}"
        wall.append(_seconds(entry, "wall_s", where))
        if "cpu_s" in entry:
            cpu.append(_seconds(entry, "cpu_s", where))
        if cpu and len(cpu) < len(wall):
            raise NoIterations(f"{where}: cpu_s must be in all lines or in none")
    if not wall:
        raise NoIterations('MUSTER_BENCH_FILE must have a line such as {"wall_s": 0.012} per iteration; it is empty')
    return Iterations(wall, cpu)


def _metrics(file: Path) -> Iterator[tuple[int, float]]:
    """Steps with their time; a line that a killed process left incomplete is skipped."""
    for _, line in _lines(file):
        entry = _object(line)
        step, seconds = entry.get("step"), entry.get("step_time_s")
        if isinstance(step, int) and isinstance(seconds, float) and math.isfinite(seconds) and seconds > 0:
            yield step, seconds


def _lines(file: Path) -> Iterable[tuple[int, str]]:
    with open(file, errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if number > MAX_ITERATIONS:
                raise NoIterations(f"{file.name} must have at most {MAX_ITERATIONS} lines")
            if line.strip():
                yield number, line


def _object(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _seconds(entry: dict[str, Any], name: str, where: str) -> float:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise NoIterations(f"{where}: {name} must be a number of seconds above 0; got {str(value)[:60]!r}")
    return float(value)
