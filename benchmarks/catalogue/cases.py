"""What is recorded: programs, faults, and the verdicts that would be right for each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ALL_RANKS = -1
SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""How long a fault takes, as a part of a clean step."""

RIGHT: dict[str, tuple[str, ...]] = {
    "none": (),
    "slow-loader": ("data-loading",),  # the data set sleeps
    "slow-worker": ("data-loading",),  # the worker process of the DataLoader sleeps
    "preprocess": ("input-preprocessing", "data-loading"),  # operators on the CPU while a batch is collated
    "python-loop": ("host-blocked",),  # in an annotation of the user's
    "silent-loop": ("host-blocked",),  # the same without an annotation
    "sleep": ("host-blocked",),
    "silent-sleep": ("host-blocked",),
    "log-metrics": ("host-blocked", "host-sync"),  # after the update: .item(), then a sleep, in an annotation
    "backward-sleep": ("host-blocked",),  # the autograd thread sleeps in a hook
    "items": ("host-sync",),  # .item() in each watched module
    "copy-out": ("copy",),  # a tensor to pageable memory
    "copy-in": ("copy",),  # a tensor from pageable memory
    "checkpoint": ("checkpoint",),  # torch.save in an annotation, in every second step
    "silent-checkpoint": ("checkpoint", "copy", "host-blocked"),  # without an annotation
    "garbage": ("garbage-collection", "host-blocked"),  # gc.collect() over many objects
    "extra-kernels": ("extra-kernels", "larger-input"),  # matrix products that others do not have
    "small-kernels": ("launch-bound", "extra-kernels"),  # thousands of kernels of a microsecond
    "larger-input": ("larger-input",),
    "recompile": ("recompilation",),  # a new shape in each step
    "empty-cache": ("allocator-retries",),
    "busy-thread": ("slow-host", "launch-bound"),  # another Python thread holds the interpreter lock
    "numpy-augment": ("data-loading", "input-preprocessing"),  # NumPy while a batch is collated
    "grad-norms": ("host-sync", "launch-bound", "extra-kernels"),  # the norm of each parameter with .item()
    "moving-average": ("extra-kernels", "launch-bound"),  # of all weights, on one rank
    "busy-device": ("slow-device",),  # another process computes on the rank's GPU
    "resent-buckets": ("exposed-all-reduce",),  # each gradient bucket is reduced many times
    "no-no-sync": ("redundant-all-reduce",),  # gradient accumulation that reduces in each pass
    "slow-network": ("slow-network", "exposed-all-reduce"),  # NCCL over TCP sockets
    "unbalanced": ("stage-imbalance",),
    "few-micro-batches": ("pipeline-bubble",),
    "tiny-model": ("launch-bound",),
}
"""The causes of which the first verdict must name one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One recording. `rank` is ALL_RANKS where no rank is at fault; `share` the fault's part of a clean step."""

    program: str
    fault: str
    rank: int
    share: float
    run: int = 0

    @property
    def name(self) -> str:
        """The folder of the recording."""
        rank = "all" if self.rank == ALL_RANKS else str(self.rank)
        return f"{self.program}.{self.fault}.{rank}.{round(self.share * 100)}.{self.run}"

    @property
    def number(self) -> int:
        """A number from the name, for choices that differ between cases."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4])

    @property
    def held_out(self) -> bool:
        """Whether it belongs to the half that is only measured."""
        return self.number % 2 == 0

    @property
    def stacks(self) -> bool:
        """Whether Python functions and modules are recorded, of some cases of programs of one process."""
        return self.program.startswith("single") and self.number // 8 % 3 == 0

    @property
    def steps(self) -> int:
        """Traced steps."""
        return 4 + self.number // 2 % 4

    def write(self, folder: Path, step_s: float) -> None:
        """Store the case beside its traces; `step_s` is the time of a clean step."""
        (folder / "case.json").write_text(json.dumps({**asdict(self), "clean_step_s": step_s}))


def read_case(folder: Path) -> Case:
    """The case of a recording."""
    stored = json.loads((folder / "case.json").read_text())
    stored.pop("clean_step_s")
    return Case(**stored)


OF_A_RANK = (
    "slow-loader",
    "preprocess",
    "python-loop",
    "silent-loop",
    "sleep",
    "silent-sleep",
    "log-metrics",
    "backward-sleep",
    "checkpoint",
    "garbage",
    "larger-input",
    "busy-thread",
)
OF_A_GPU = (
    "items",
    "copy-out",
    "copy-in",
    "silent-checkpoint",
    "extra-kernels",
    "small-kernels",
    "empty-cache",
    "busy-device",
)
LATER = ("numpy-augment", "grad-norms", "moving-average")
"""On one rank too; last, so that the ranks and shares of the others stay."""
OF_ALL = ("slow-loader", "preprocess", "checkpoint", "sleep")
OF_ALL_GPUS = ("items", "copy-in", "copy-out")
OF_ONE_GPU = (
    "slow-loader",
    "preprocess",
    "python-loop",
    "silent-loop",
    "sleep",
    "log-metrics",
    "checkpoint",
    "garbage",
    "items",
    "copy-out",
    "copy-in",
    "empty-cache",
)
"""What a program of one process shows by itself; without a device those of `OF_A_RANK`."""
# Faults that a program's shapes or parallelism do not permit.
IMPOSSIBLE = {
    "pp": ("larger-input",),
    "titan": ("larger-input",),
}
BY_CONSTRUCTION: dict[str, str] = {
    "ddp-tiny": "tiny-model",
    "ddp-resent": "resent-buckets",
    "ddp-accumulate": "none",
    "ddp-no-sync": "no-no-sync",
    "ddp-network": "slow-network",
    "fsdp-network": "slow-network",
    "ddp-workers": "slow-worker",
    "ddp-compile": "recompile",
    "single-tiny": "tiny-model",
    "single-compile": "recompile",
    "pp-unbalanced": "unbalanced",
    "pp-few": "few-micro-batches",
}
"""Programs that exist for one fault."""
OF_A_STAGE = ("pp-unbalanced",)


def cases_of(program: str, world: int, gpus: bool, clean: int = 2) -> Iterator[Case]:
    """All cases of a program; ranks, shares and the set of all-rank faults follow from names."""

    def at(fault: str, position: int) -> Case:
        seed = Case(program, fault, 0, 0.0).number
        return Case(program, fault, (seed + position) % world, SHARES[(seed // world + position) % len(SHARES)])

    for run in range(clean):
        if BY_CONSTRUCTION.get(program, "none") in ("none", "slow-worker", "recompile"):
            yield Case(program, "none", ALL_RANKS, 0.0, run)
    if (fault := BY_CONSTRUCTION.get(program)) is not None:
        if fault in ("slow-worker", "recompile"):
            yield from (at(fault, position) for position in range(2))
        elif fault != "none":
            yield Case(program, fault, world // 2 if program in OF_A_STAGE else ALL_RANKS, 0.0)
        return
    impossible = IMPOSSIBLE.get(program.partition("-")[0], ())
    if program.startswith("single"):
        yield from (at(fault, position) for position, fault in enumerate(OF_ONE_GPU) if gpus or fault in OF_A_RANK)
        return
    for position, fault in enumerate((*OF_A_RANK, *(OF_A_GPU if gpus else ()), *(LATER if gpus else ()))):
        if fault not in impossible:
            yield at(fault, position)
    seed = Case(program, "all", 0, 0.0).number
    for_all = (*OF_ALL, *(OF_ALL_GPUS if gpus else ()))
    for position in range(2):
        fault = for_all[(seed + position) % len(for_all)]
        yield Case(program, fault, ALL_RANKS, SHARES[2 + (seed + position) % 3])


def some(cases: Iterable[Case], faulty: int | None) -> list[Case]:
    """Those without a fault, and so many of the others, chosen by their names."""
    found = list(cases)
    chosen = sorted((case for case in found if case.fault != "none"), key=lambda case: case.number)[:faulty]
    return [case for case in found if case.fault == "none" or case in chosen]
