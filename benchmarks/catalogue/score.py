"""How often the first verdict on a recording of the catalogue is right.

    python -m catalogue.score FOLDER [--held-out | --seen] [--json]    # with PYTHONPATH=benchmarks

A recording without a fault is right if no rank is accused. One with a fault is right if the first verdict names the
rank (or none, where all ranks have the fault) and one of the causes of `RIGHT`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from catalogue.cases import ALL_RANKS, RIGHT, Case, read_case
from muster.tracing.run_analysis import analyse_run
from muster.tracing.run_folder import read_run_folder
from muster.tracing.verdicts import Verdict


def is_right(case: Case, verdicts: Sequence[Verdict], world: int) -> bool:
    """Whether the first verdict is right."""
    if case.fault == "none":
        return not any(verdict.ranks for verdict in verdicts)
    if not verdicts or verdicts[0].cause not in RIGHT[case.fault]:
        return False
    ranks = verdicts[0].ranks
    return ranks == (case.rank,) if case.rank != ALL_RANKS else len(ranks) in (0, world)


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
    for path in sorted(path.parent for path in args.folder.glob("**/case.json")):
        case = read_case(path)
        if (args.held_out and not case.held_out) or (args.seen and case.held_out):
            continue
        verdicts = analyse_run(read_run_folder(path)).verdicts
        world = len(list(path.glob("rank-*")))
        accused = bool(verdicts and verdicts[0].ranks and len(verdicts[0].ranks) < world)
        row = {
            "name": case.name,
            "right": is_right(case, verdicts, world),
            "accuses": accused,
            "accuses rightly": accused and verdicts[0].ranks == (case.rank,),
            "verdicts": [
                f"{v.cause} {list(v.ranks) or 'all'} {v.cost_ms:.1f} ms {v.confidence:.2f}" for v in verdicts[:4]
            ],
        }
        rows.append(row)
        if not args.json:
            print(f"{'right' if row['right'] else 'WRONG':<6}{row['name']:<42}{'; '.join(row['verdicts']) or 'none'}")
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    faulty = [row for row in rows if ".none." not in row["name"]]
    clean = [row for row in rows if ".none." in row["name"]]
    accusing = [row for row in rows if row["accuses"]]
    print(f"first verdict right: {sum(row['right'] for row in faulty)} of {len(faulty)}")
    print(f"accusations right: {sum(row['accuses rightly'] for row in accusing)} of {len(accusing)}")
    print(f"clean without an accusation: {sum(row['right'] for row in clean)} of {len(clean)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
