"""How fast the operator brings pods to nodes, on a real control plane with 500 virtual nodes of 8 GPUs.

    python benchmarks/cluster.py --case fill --json
    python benchmarks/cluster.py --case gang512 --case jobs50x10 --repeat 5 --out rows.jsonl
    python benchmarks/cluster.py --case gang512 --beside native --beside volcano --volcano FOLDER --repeat 5 --table

etcd, API server, controller manager, kube-scheduler, KWOK, the operator and this program share the machine. Every
repetition starts all of them anew. Jobs are created over 48 connections; whether pods are bound and Ready is seen by
a watch. How fast pods get Ready is bounded by KWOK, which plays the kubelets: some 200 pods a second on two cores.
With --repeat, the last rows are the medians.

--beside puts the same work to another scheduler on the same kind of cluster, without Muster, with the same calls a
second, in turn with Muster: kube-scheduler (single pods), jobs (batch/v1 Jobs with kube-scheduler), native
(kube-scheduler's own gangs, alpha in 1.36), volcano, kai, kueue, and kueue-job-sets (JobSets instead of Jobs). The last
four are no part of this project: build them, and name a folder with the programs and their CRDs. muster-jobs and
muster-job-sets are Muster itself with the objects that Kueue gets. reclaim, racks and kueue are cases of Muster alone.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the control plane is that of the tests

from benchmarks.scale.bench_cluster import bench_cluster
from benchmarks.scale.cases import CASES, MUSTERS_OWN
from benchmarks.scale.contender import Contender, Rate
from benchmarks.scale.measure import Row
from benchmarks.scale.muster import MUSTER
from benchmarks.scale.order import Turn, turns
from benchmarks.scale.peers.registry import BUILT, GANG_SCHEDULERS, NAMES, Missing, contender
from benchmarks.scale.table import details, failed, medians, overview

RATES = {"kueue": Rate(300, 500)}  # as Kueue was measured
COLUMNS = (
    "case", "scheduler", "pods", "create_to_bound_s", "create_to_ready_s", "operator_cpu_s", "operator_rss_mib",
    "writes_per_pod", "partial_gangs",
)  # fmt: skip


def main() -> int:
    """Read the command line, measure, print; 1 if a peer failed, as its rows say."""
    parser = _parser()
    args = parser.parse_args()
    try:
        contenders = _contenders(args)
    except Missing as missing:
        parser.error(str(missing))
    rows: list[dict[str, Any]] = []
    for turn in turns(args.case or list(CASES), list(contenders), args.repeat, MUSTERS_OWN):
        rows.append(dataclasses.asdict(_measured(turn, contenders[turn.scheduler], args)))
        _print_rows(rows[-1:], args)
    together = medians(rows)
    if args.repeat > 1:
        _print_rows(together, args)
    if args.table:
        print(f"\n{overview(together, GANG_SCHEDULERS)}\n\n{details(together)}")
    return int(any(map(failed, rows)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeat for several; default: all")
    parser.add_argument("--beside", action="append", choices=NAMES, default=[], help="repeat for several")
    for name, (_, needs) in BUILT.items():
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=f"a folder with {', '.join(needs)}")
    parser.add_argument("--no-muster", action="store_true", help="only those of --beside")
    parser.add_argument("--nodes", type=int, default=500, help="of 8 GPUs, 20 in a rack (default: %(default)d)")
    parser.add_argument(
        "--repeat", type=int, default=1, help="how often each case is measured, each time on a new control plane"
    )
    parser.add_argument("--qps", type=int, help="a scheduler's calls a second (default: 1000; of case kueue 300)")
    parser.add_argument("--burst", type=int, help="in one burst (default: 2000; of case kueue 500)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--table", action="store_true", help="at the end two tables in Markdown")
    parser.add_argument("--out", type=Path, help="append every row to this file, as JSON")
    parser.add_argument("--keep", type=Path, help="keep the logs of all programs in this folder")
    return parser


def _contenders(args: argparse.Namespace) -> dict[str, Contender]:
    """Muster first. Raises Missing."""
    paths: Mapping[str, Path | None] = {name: getattr(args, name.replace("-", "_")) for name in BUILT}
    for name, path in paths.items():
        if path is not None and name not in args.beside:
            raise Missing(f"--{name} PATH is of use only with --beside {name}")
    if args.no_muster and not args.beside:
        raise Missing("--no-muster needs a --beside: there is nothing to measure")
    measured = {} if args.no_muster else {"muster": MUSTER}
    return measured | {name: contender(name, paths.get(name)) for name in args.beside}


def _measured(turn: Turn, one: Contender, args: argparse.Namespace) -> Row:
    """As `measure`. What a peer cannot do is a row with an error, so that the others' rows are not lost."""
    if turn.scheduler == "muster":
        return measure(turn, one, args)
    try:
        return measure(turn, one, args)
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        print(f"{turn.scheduler}, {turn.case}: {error}", file=sys.stderr, flush=True)
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(turn.case, 0, turn.scheduler, notes={"error": message})


def measure(turn: Turn, one: Contender, args: argparse.Namespace) -> Row:
    """One repetition, on a control plane of its own."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as temporary:
        folder = Path(temporary)
        if args.keep is not None:
            folder = args.keep / f"{turn.case}-{turn.scheduler}-{turn.number}"
        usual = RATES.get(turn.case, Rate())
        rate = Rate(args.qps or usual.qps, args.burst or usual.burst)
        with bench_cluster(folder, args.nodes, rate, one) as ready:
            return asyncio.run(CASES[turn.case](ready))  # type: ignore[arg-type]


def _print_rows(rows: Iterable[dict[str, Any]], args: argparse.Namespace) -> None:
    for row in rows:
        if args.out is not None:
            with args.out.open("a") as file:
                print(json.dumps(row), file=file)
        if args.json:
            print(json.dumps(row), flush=True)
        else:
            print("  ".join(f"{key}={row[key]}" for key in COLUMNS), flush=True)


if __name__ == "__main__":
    sys.exit(main())
