"""Ranks of the trainer as real processes, and text to train on."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.forked import Rank

from muster.local.nodes import free_port

TRAINER = "muster_components.trainer"
INSTRUMENT = "muster_components.trainer.instrument"
TINY = (
    *("--model", "gpt:1m", "--seq_len", "32", "--global_batch", "8", "--no_compile", "--log_every", "1"),
    *("--checkpoint_memory", "none"),  # so that each checkpoint is written
)
"""A run with steps of some hundredths of a second."""

HELD = """
import os, sys, time
from muster_components.trainer.__main__ import main
from muster_components.trainer.train_step import TrainStep
launch = TrainStep.launch
def held(self, step):
    while step == int(os.environ["HELD_AT"]) and not os.path.exists(os.environ["HELD_UNTIL"]):
        time.sleep(0.01)
    return launch(self, step)
TrainStep.launch = held
sys.exit(main(sys.argv[1:]))
"""
"""A trainer whose ranks wait before one step, so that a test can act before it."""

SIGNALLED_IN_STEP_3 = """
import os, signal, sys
from muster_components.trainer.__main__ import main
from muster_components.trainer.forward_backward import GradientAccumulation
run, step = GradientAccumulation.run, 0
def signalled(self, batches):
    global step
    step += 1
    if step == 3 and os.environ["RANK"] == os.environ["SIGNALLED_RANK"]:
        os.kill(os.getpid(), signal.SIGTERM)
    return run(self, batches)
GradientAccumulation.run = signalled
sys.exit(main(sys.argv[1:]))
"""
"""A trainer of which one rank gets SIGTERM in its third step, while it computes."""


@dataclass
class Ranks:
    """The processes of one attempt, their logs and their run folder."""

    processes: list[subprocess.Popen[bytes] | Rank]
    logs: list[Path]
    run_dir: Path
    attempt: int
    held_until: Path

    def go_on(self) -> None:
        """Let the ranks continue after `held_at`."""
        self.held_until.touch()

    def end(self, timeout_s: float = 600) -> list[int]:
        deadline = time.monotonic() + timeout_s
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.log_text()}") from None

    def send(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)

    def log_text(self, rank: int = 0) -> str:
        return self.logs[rank].read_text(errors="replace")

    def wait_until(self, what: Callable[[], object], timeout_s: float = 600) -> None:
        deadline = time.monotonic() + timeout_s
        while not what():
            assert all(process.poll() is None for process in self.processes), f"ended early:\n{self.log_text()}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s:\n{self.log_text()}"
            time.sleep(0.005)

    def steps_done(self) -> int:
        """Steps that this attempt has ended."""
        return sum(line["attempt"] == self.attempt for line in metrics(self.run_dir))


class Starter:
    """start(world_size, "--steps", "10", run_dir=..., attempt=...) runs the trainer (or `module`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Ranks] = []

    def __call__(
        self,
        world_size: int,
        *arguments: str,
        run_dir: Path | None = None,
        attempt: int = 0,
        module: str = TRAINER,
        environ: Mapping[str, str] | None = None,
        limit_file_bytes: int | None = None,
        held_at: int | None = None,
        preloaded: bool = True,
    ) -> Ranks:
        run_dir = run_dir or self._folder / "run"
        port = free_port((), random.Random())  # none that the kernel gives to others before rank 0 listens
        ranks = Ranks([], [], run_dir, attempt, self._folder / f"go-{len(self._started)}")
        self._started.append(ranks)
        if held_at is not None:
            module = "held"
            (self._folder / "held.py").write_text(HELD)
            environ = {**(environ or {}), "HELD_AT": str(held_at), "HELD_UNTIL": str(ranks.held_until)}
        for rank in range(world_size):
            of_rank = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "MUSTER_RUN_DIR": str(run_dir),
                "MUSTER_ATTEMPT": str(attempt),
            }
            ranks.logs.append(self._folder / f"log-{len(self._started)}-{rank}.txt")
            env = {**clean_environment(self._folder), **of_rank, **(environ or {})}
            if not preloaded or module == INSTRUMENT:  # which must precede the import of torch
                command = [sys.executable, "-m", module, *arguments]
                with ranks.logs[-1].open("wb") as output:
                    ranks.processes.append(
                        subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder, env=env)
                    )
                continue
            ranks.processes.append(Rank(module, arguments, ranks.logs[-1], self._folder, env, limit_file_bytes))
        return ranks

    def kill_all(self) -> None:
        for ranks in self._started:
            for process in ranks.processes:
                process.kill()
                process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(tmp_path)
    yield starter
    starter.kill_all()


@dataclass(frozen=True)
class Finished:
    """A completed run of two ranks and nine steps with a checkpoint every three, and its flags."""

    run_dir: Path
    flags: tuple[str, ...]
    log_text: str


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("finished")
    flags = (*TINY, "--data", str(write_text(folder)), "--steps", "9", "--checkpoint_every", "3", "--keep", "3")
    starter = Starter(folder)
    ranks = starter(2, *flags)
    assert ranks.end() == [0, 0], ranks.log_text()
    yield Finished(ranks.run_dir, flags, ranks.log_text())
    starter.kill_all()


@pytest.fixture
def finished(finished_once: Finished, tmp_path: Path) -> Finished:
    """A copy of `finished_once` for one test."""
    copy = tmp_path / "run"
    shutil.copytree(finished_once.run_dir, copy)
    return replace(finished_once, run_dir=copy)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of three small files of English-like text."""
    return write_text(tmp_path)


def write_text(within: Path) -> Path:
    folder = within / "text"
    folder.mkdir()
    for number, animal in enumerate(("fox", "dog", "owl")):
        lines = (f"{i}: the quick {animal} jumps over the lazy {animal} {i * 7 % 13} times.\n" for i in range(200))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def write_files_after(event: str) -> str:
    """A trainer that writes the files of a checkpoint only once an event of this kind is in events.jsonl."""
    return f"""
import os, sys, time
from pathlib import Path
from muster_components.trainer import checkpoint_writer
from muster_components.trainer.__main__ import main
write = checkpoint_writer.write_files
def held(*args):
    events = Path(os.environ["MUSTER_RUN_DIR"], "events.jsonl")
    while '"{event}"' not in (events.read_text() if events.exists() else ""):
        time.sleep(0.01)
    return write(*args)
checkpoint_writer.write_files = held
sys.exit(main(sys.argv[1:]))
"""


def clean_environment(cache: Path) -> dict[str, str]:
    """The environment of the tests without variables of Muster and torchrun; CPU only."""
    unmanaged = ("MUSTER_", "OMP_", "RANK", "LOCAL_", "WORLD_", "MASTER_", "TORCHELASTIC_")
    ours = {name: value for name, value in os.environ.items() if not name.startswith(unmanaged)}
    return {**ours, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MUSTER_CACHE_DIR": str(cache / "cache")}


def compilations(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The records of `compilation/` of a rank."""
    return [json.loads(line) for line in (run_dir / "compilation" / f"rank-{rank}.jsonl").read_text().splitlines()]


def metrics(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The complete lines of a rank's metrics; for a repeated step that of the last attempt."""
    path = run_dir / "metrics" / f"rank-{rank}.jsonl"
    # The last line may be incomplete.
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    by_step = {line["step"]: line for line in sorted(lines, key=lambda line: (line["attempt"], line["step"]))}
    return sorted(by_step.values(), key=lambda line: line["step"])


def losses(run_dir: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in metrics(run_dir)}


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    path = run_dir / "events.jsonl"
    # The last line may be incomplete.
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
    return [line for line in lines if line["kind"] == kind]


def latest(run_dir: Path) -> dict[str, Any] | None:
    path = run_dir / "checkpoints" / "latest"
    return json.loads(path.read_text()) if path.exists() else None
