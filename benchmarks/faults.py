"""Whether the analysis names the rank and the cause of planted faults: traces of `fault_program.py`, plain PyTorch.

    python benchmarks/faults.py --ranks 4                        # every fault with every layout
    python benchmarks/faults.py --layout ddp --fault none --runs 10
    python benchmarks/faults.py --keep FOLDER                    # keeps the traces, and analyses those that are there

Each row is a run: its first verdict, and whether that is the expected one. It asserts nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fault_program
import torch

from muster.tracing.run_analysis import analyse_run
from muster.tracing.run_folder import read_run_folder
from muster.tracing.verdicts import Cause, Verdict

TIMEOUT_S = 300
EXPECTED = {
    "none": None,
    "slow-loader": Cause.DATA_LOADING,
    "checkpoint": Cause.CHECKPOINT,
    "host-sleep": Cause.HOST_BLOCKED,
    "silent-sleep": Cause.HOST_BLOCKED,
    "extra-work": Cause.EXTRA_KERNELS,
    "recompilation": Cause.RECOMPILATION,
    "slow-transfer": Cause.EXPOSED_ALL_REDUCE,
    "unbalanced": Cause.STAGE_IMBALANCE,
}
"""The cause of each fault of the program."""


def possible(layout: str, fault: str) -> bool:
    """Whether the program has this fault with this layout."""
    only = {
        "slow-transfer": ("ddp",),
        "unbalanced": ("pp", "pp-fsdp"),
        "recompilation": ("ddp",),
    }
    return layout in only.get(fault, fault_program.LAYOUTS)


def record(folder: Path, layout: str, fault: str, ranks: int, rank: int) -> bool:
    """Train with a trace of each rank; False if a rank failed. The ranks are forks, which need not import torch."""
    folder.mkdir(parents=True)
    options = ["--layout", layout, "--fault", fault, "--rank", str(rank), "--out", str(folder)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(i, ranks, port, options)) for i in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
        process.kill()
    return all(process.exitcode == 0 for process in processes)


def _rank(rank: int, ranks: int, port: int, options: list[str]) -> None:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()}, MASTER_ADDR="127.0.0.1", KINETO_LOG_LEVEL="5")
    fault_program.main(options)


def as_expected(verdict: Verdict | None, fault: str, rank: int) -> bool:
    """Whether the first verdict names the cause, and the rank unless the fault is on all."""
    if verdict is None or EXPECTED[fault] is None:
        return verdict is None and EXPECTED[fault] is None
    return verdict.cause is EXPECTED[fault] and (rank in verdict.ranks or fault == "slow-transfer")


def main(argv: Sequence[str] | None = None) -> int:
    """Record, analyse, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=2, help="the rank with the fault")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--layout", action="append", choices=fault_program.LAYOUTS)
    parser.add_argument("--fault", action="append", choices=EXPECTED)
    parser.add_argument("--keep", type=Path, help="a folder for the traces")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    cases = [(layout, fault) for fault in args.fault or EXPECTED for layout in args.layout or fault_program.LAYOUTS]
    good = total = 0
    with tempfile.TemporaryDirectory() as temporary:
        for layout, fault in (case for case in cases if possible(*case)):
            for run in range(args.runs):
                name = f"{layout}.{fault}.{args.ranks}-{args.rank}.{run}"
                folder = (args.keep or Path(temporary)) / name
                if not folder.exists() and not record(folder, layout, fault, args.ranks, args.rank):
                    print(f"{name:<30} failed", flush=True)
                    continue
                verdicts = analyse_run(read_run_folder(folder)).verdicts
                first = verdicts[0] if verdicts else None
                known = as_expected(first, fault, args.rank)
                good, total = good + known, total + 1
                shown = "; ".join(f"{v.cause} {list(v.ranks) or 'all'} {v.cost_ms:.1f} ms" for v in verdicts) or "none"
                print(f"{name:<30} {'as expected' if known else 'NOT expected':<13} {shown}", flush=True)
    print(f"{good} of {total} as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
