"""How often the first verdict on a recording of the catalogue is right.

    python -m catalogue.score FOLDER [--held-out | --seen] [--json]    # with PYTHONPATH=benchmarks

A recording without a fault is right if no rank is accused. One with a fault is right if the first verdict names the
rank (or none, where all ranks have the fault) and one of the causes of `RIGHT`. What the recordings of the program
without a fault say of all ranks is left out. A fault that the device hides, so that a step takes less than 3% longer
than in the program's recordings without a fault, may also have no verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from catalogue.cases import ALL_RANKS, RIGHT, Case, read_case
from muster.tracing.analysis.run_analysis import Report, analyse_run
from muster.tracing.runs.run_folder import read_run_folder
from muster.tracing.verdicts import Verdict

HIDDEN = 1.03
CONFIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01)


def accuses(verdict: Verdict, world: int) -> bool:
    """Whether a verdict is on some of the ranks; the verdicts on the only rank are on all."""
    return 0 < len(verdict.ranks) < world


def is_right(case: Case, verdicts: Sequence[Verdict], world: int, *, hidden: bool) -> bool:
    """Whether the first verdict is right."""
    if case.fault == "none":
        return not any(accuses(verdict, world) for verdict in verdicts)
    if not verdicts and hidden:
        return True
    if not verdicts or verdicts[0].cause not in RIGHT[case.fault]:
        return False
    ranks = verdicts[0].ranks
    return ranks == (case.rank,) if case.rank != ALL_RANKS else len(ranks) in (0, world)


def step_s(report: Report) -> float:
    """The median traced step of the slowest rank."""
    return max(float(np.median(list(row.trace.step_s.values()))) for row in report.traces)


def main(argv: Sequence[str] | None = None) -> int:
    """Analyse, print a row for each recording, then the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--held-out", action="store_true", help="only the half that is not for development")
    half.add_argument("--seen", action="store_true", help="only the other half")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rows = []
    clean: dict[tuple[str, str], list[Report]] = {}
    for path in sorted(path.parent for path in args.folder.glob("**/case.json")):
        case = read_case(path)
        if case.fault == "none":
            clean.setdefault((path.parent.name, case.program), []).append(analyse_run(read_run_folder(path)))
    for path in sorted(path.parent for path in args.folder.glob("**/case.json")):
        case = read_case(path)
        if (args.held_out and not case.held_out) or (args.seen and case.held_out):
            continue
        report = analyse_run(read_run_folder(path))
        of_program = clean.get((path.parent.name, case.program), [])
        world = len(list(path.glob("rank-*")))
        usual = {verdict.cause for one in of_program for verdict in one.verdicts if not accuses(verdict, world)}
        verdicts = [v for v in report.verdicts if accuses(v, world) or v.cause not in usual or case.fault == "none"]
        clean_s = float(np.median([step_s(one) for one in of_program])) if of_program else 0.0
        slower = step_s(report) / clean_s if clean_s else float("inf")
        accused = bool(verdicts) and accuses(verdicts[0], world)
        row = {
            "name": case.name,
            "right": is_right(case, verdicts, world, hidden=slower < HIDDEN),
            "slower": round(slower, 3),
            "accuses": accused,
            "accuses rightly": accused and verdicts[0].ranks == (case.rank,),
            "confidence": verdicts[0].confidence if verdicts else None,
            "verdicts": [
                f"{v.cause} {list(v.ranks) or 'all'} {v.cost_ms:.1f} ms {v.confidence:.2f}" for v in verdicts[:4]
            ],
        }
        rows.append(row)
        if not args.json:
            shown = "; ".join(row["verdicts"]) or "none"
            print(f"{'right' if row['right'] else 'WRONG':<6}{row['name']:<42}{row['slower']:<7}{shown}")
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    faulty = [row for row in rows if ".none." not in row["name"]]
    unfaulty = [row for row in rows if ".none." in row["name"]]
    accusing = [row for row in rows if row["accuses"]]
    print(f"first verdict right: {sum(row['right'] for row in faulty)} of {len(faulty)}")
    print(f"accusations right: {sum(row['accuses rightly'] for row in accusing)} of {len(accusing)}")
    print(f"clean without an accusation: {sum(row['right'] for row in unfaulty)} of {len(unfaulty)}")
    print("\n".join(calibration(accusing, faulty)))
    return 0


def calibration(accusing: Sequence[Mapping[str, Any]], faulty: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of first verdicts, by their confidence, how many name the right rank, and how many rank and cause."""
    yield "confidence of the first verdict: accused rank right, first verdict right"
    for low, high in pairwise(CONFIDENCES):
        named = [row for row in accusing if low <= row["confidence"] < high]
        first = [row for row in faulty if row["confidence"] is not None and low <= row["confidence"] < high]
        rank, both = sum(row["accuses rightly"] for row in named), sum(row["right"] for row in first)
        yield f"{low:.2f} to {min(high, 1.0):.2f}: {rank} of {len(named)}, {both} of {len(first)}"


if __name__ == "__main__":
    sys.exit(main())
