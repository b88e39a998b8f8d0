"""Whether the analysis names the rank and the cause of planted faults: traces of `fault_program.py`, plain PyTorch.

    python benchmarks/faults.py --ranks 4                        # every fault with every layout
    python benchmarks/faults.py --layout ddp --fault none --runs 10
    python benchmarks/faults.py --keep FOLDER                    # keeps the traces, and analyses those that are there

The ranks run on GPUs with NCCL if there are enough, else on the CPU with gloo. Other options are those of the program.
Each row is a run: its first verdict, and whether that is the expected one. It asserts nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fault_program
import torch

from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.runs.run_folder import read_run_folder
from muster.tracing.verdicts import Cause, Verdict

EXPECTED = {
    "none": None,
    "slow-loader": Cause.DATA_LOADING,
    "checkpoint": Cause.CHECKPOINT,
    "host-sleep": Cause.HOST_BLOCKED,
    "silent-sleep": Cause.HOST_BLOCKED,
    "extra-work": Cause.EXTRA_KERNELS,
    "recompilation": Cause.RECOMPILATION,
    "slow-transfer": Cause.EXPOSED_ALL_REDUCE,
    "slow-network": Cause.SLOW_NETWORK,
    "unbalanced": Cause.STAGE_IMBALANCE,
}
"""The cause of each fault of the program."""
OF_ALL_RANKS = ("slow-transfer", "slow-network")


@dataclass(frozen=True, slots=True)
class Case:
    """A run to record and to analyse."""

    layout: str
    fault: str
    folder: Path


def possible(layout: str, fault: str, device: str, ranks: int) -> bool:
    """Whether the program has this fault with this layout."""
    only = {
        "slow-transfer": ("ddp",),
        "slow-network": fault_program.LAYOUTS if device == "cuda" else (),
        "unbalanced": ("pp", "pp-fsdp"),
        "recompilation": ("ddp",),
    }
    return layout in only.get(fault, fault_program.LAYOUTS) and (layout != "pp-fsdp" or ranks >= 4)


def record(cases: Sequence[Case], options: Sequence[str], device: str, ranks: int, environment: dict[str, str]) -> None:
    """Train and trace the cases in turn, in the same processes; after a case that fails, the rest in new ones."""
    while cases:
        _train(cases, options, device, ranks, environment)
        done = next((i for i, case in enumerate(cases) if not case.folder.exists()), len(cases))
        cases = cases[done + 1 :]


def _train(cases: Sequence[Case], options: Sequence[str], device: str, ranks: int, environment: dict[str, str]) -> None:
    """One process for each rank, until all have ended or one has failed."""
    arguments = [["--layout", c.layout, "--fault", c.fault, "--out", str(c.folder), *options] for c in cases]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = {**environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    context = multiprocessing.get_context("spawn")  # CUDA does not work in forks
    processes = [
        context.Process(
            target=fault_program.train_all, args=({**shared, "RANK": str(i), "LOCAL_RANK": str(i)}, device, arguments)
        )
        for i in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        while running := [process for process in processes if process.is_alive()]:
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=1)
            if any(process.exitcode for process in processes):
                break
    finally:
        for process in processes:
            process.kill()
            process.join()


def as_expected(verdict: Verdict | None, fault: str, rank: int) -> bool:
    """Whether the first verdict names the cause, and the rank unless the fault is on all."""
    if verdict is None or EXPECTED[fault] is None:
        return verdict is None and EXPECTED[fault] is None
    return verdict.cause is EXPECTED[fault] and (rank in verdict.ranks or fault in OF_ALL_RANKS)


def main(argv: Sequence[str] | None = None) -> int:
    """Record, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, help="the rank with the fault; default: half of --ranks")
    parser.add_argument("--runs", type=int, default=1, help="of each fault")
    parser.add_argument("--clean-runs", type=int, help="of those without a fault; default: --runs")
    parser.add_argument("--layout", action="append", choices=fault_program.LAYOUTS)
    parser.add_argument("--fault", action="append", choices=EXPECTED)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if there is a GPU for each rank")
    parser.add_argument("--keep", type=Path, help="a folder for the traces")
    args, options = parser.parse_known_args(argv)
    gpus = torch.cuda.device_count()
    device = args.device or ("cuda" if gpus >= args.ranks else "cpu")
    rank = args.ranks // 2 if args.rank is None else args.rank
    if not 0 <= rank < args.ranks:
        parser.error(f"--rank must be from 0 to {args.ranks - 1}; got {rank}")
    options += ["--rank", str(rank)]
    fault_program.parse([*options, "--out", ""])
    os.environ["KINETO_LOG_LEVEL"] = "5"  # of the ranks, before they import torch
    with tempfile.TemporaryDirectory() as temporary:
        cases = [
            Case(layout, fault, (args.keep or Path(temporary)) / f"{layout}.{fault}.{args.ranks}-{rank}.{run}")
            for fault in args.fault or EXPECTED
            for layout in args.layout or fault_program.LAYOUTS
            if possible(layout, fault, device, args.ranks)
            for run in range(args.clean_runs or args.runs if fault == "none" else args.runs)
        ]
        missing = [case for case in cases if not case.folder.exists()]
        if missing and device == "cuda" and gpus < args.ranks:
            parser.error(f"--device cuda: {args.ranks} ranks need {args.ranks} GPUs; this machine has {gpus}")
        for network in (False, True):
            of_network = [case for case in missing if (case.fault == "slow-network") == network]
            record(of_network, options, device, args.ranks, fault_program.NETWORK_ENVIRONMENT if network else {})
        good = sum(_analyse(case, rank) for case in cases)
    print(f"{good} of {len(cases)} as expected")
    return 0


def _analyse(case: Case, rank: int) -> bool:
    """Print the row of a case; whether its first verdict is the expected one."""
    if not case.folder.exists():
        print(f"{case.folder.name:<30} failed", flush=True)
        return False
    verdicts = analyse_run(read_run_folder(case.folder)).verdicts
    known = as_expected(verdicts[0] if verdicts else None, case.fault, rank)
    shown = "; ".join(f"{v.cause} {list(v.ranks) or 'all'} {v.cost_ms:.1f} ms" for v in verdicts) or "none"
    print(f"{case.folder.name:<30} {'as expected' if known else 'NOT expected':<13} {shown}", flush=True)
    return known


if __name__ == "__main__":
    sys.exit(main())
