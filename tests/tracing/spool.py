"""A run folder with traces in its spool, and a collector, in this process or a separate one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tracing.kineto import trace_text, training_steps

from muster.tracing.collector import main
from muster.tracing.runs.trace_files import Manifest, TraceEntry, read_manifest, read_manifests
from muster.tracing.shared_folder import SharedFolder

TRACE = trace_text(training_steps(5))


def spooled(run_dir: Path, rank: int = 0, *, attempt: int = 0, content: bytes = TRACE) -> Path:
    path = run_dir / "traces" / "spool" / f"rank-{rank}.attempt-{attempt}.steps-20-25.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".tmp").write_bytes(content)
    return path.with_suffix(".tmp").rename(path)


def collected(run_dir: Path, rank: int = 0, *, attempt: int = 0) -> Path:
    return run_dir / "traces" / f"rank-{rank}.attempt-{attempt}.steps-20-25.json.gz"


def claimed(source: Path, pod: int = 0) -> Path:
    return source.parents[1] / "claimed" / f"trainer-{pod}" / source.name


def manifest_of(run_dir: Path, pod: int = 0) -> Manifest:
    return read_manifest(SharedFolder(run_dir), f"manifest-trainer-{pod}.json")


def command(run_dir: Path, *options: str, pod: int = 0) -> list[str]:
    module = [sys.executable, "-m", "muster.tracing.collector", "--run-dir", str(run_dir)]
    return [*module, "--role", "trainer", "--index", str(pod), "--poll-seconds", "0.05", *options]


def uncollected(run_dir: Path) -> list[str]:
    """The names of files in the spool and of claimed ones."""
    folders = (run_dir / "traces" / "spool", run_dir / "traces" / "claimed")
    return sorted(path.name for folder in folders for path in folder.rglob("*") if path.is_file())


@contextmanager
def collector(run_dir: Path, *options: str, pod: int = 0, **how: object) -> Iterator[subprocess.Popen[str]]:
    started = command(run_dir, *options, pod=pod)
    process = subprocess.Popen(started, stderr=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def run_once(run_dir: Path, *options: str, pod: int = 0) -> int:
    """Run the collector in this process until no trace is left."""
    return main(["--run-dir", str(run_dir), "--role", "trainer", "--index", str(pod), "--until-idle", *options])


def listed(run_dir: Path) -> list[TraceEntry]:
    """All entries of all manifests."""
    return [entry for manifest in read_manifests(SharedFolder(run_dir)) for entry in manifest.traces]


def abandoned(run_dir: Path, rank: int = 0, *, pod: int) -> Path:
    """A trace that the collector of this pod had claimed when it was killed."""
    source = spooled(run_dir, rank)
    claimed(source, pod).parent.mkdir(parents=True, exist_ok=True)
    return source.rename(claimed(source, pod))
