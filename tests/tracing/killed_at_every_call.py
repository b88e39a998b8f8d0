"""Kills a collector (SIGKILL) before and after each of its calls to S3, and checks that its successor loses nothing.

It is a separate process, because it forks: `python -m tests.tracing.killed_at_every_call FOLDER`. Prints for each run
how many parts the successor has sent.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import fsspec
from tests.tracing import s3
from tests.tracing.collector_in_child import collect, is_killed
from tests.tracing.kineto import Event, trace_text

from muster.tracing.runs import multipart_upload, trace_files
from muster.tracing.shared_folder import SharedFolder

PART_BYTES = 64 << 10
NAME = "rank-0.attempt-0.steps-20-25.json"


def large_trace() -> bytes:
    """A trace of more than two parts when it is compressed."""
    words = random.Random(0)
    return trace_text([Event(words.randbytes(1 << 10).hex(), 10.0 * i, 5.0) for i in range(135)], indent=None)


def state_dir(run_dir: Path) -> Path:
    """The folder of the collector alone."""
    folder = run_dir.with_name(f"{run_dir.name}-state")
    folder.mkdir(exist_ok=True)
    return folder


def collect_in_child(run_dir: Path, kill_at: int, report: Path) -> bool:
    """Collect in a process that is killed before (even) or after (odd) call `kill_at` // 2; False if it ended before.

    The store has the name of the run folder. The process writes the calls that it has made into `report`.
    """

    def body() -> None:
        filesystem = fsspec.get_filesystem_class("s3")
        called = filesystem.call_s3
        methods: list[str] = []

        def call_s3(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
            if kill_at == 2 * len(methods):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = called(self, method, *arguments, **named)
            methods.append(method)
            report.write_text(json.dumps(methods))
            if kill_at == 2 * len(methods) - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        filesystem.call_s3 = call_s3
        collect(run_dir, f"s3://{s3.BUCKET}/{run_dir.name}", state_dir=state_dir(run_dir))

    return is_killed(body)


def main(folder: Path) -> int:
    assert multipart_upload.PART_BYTES >= s3.AWS_PART_BYTES
    multipart_upload.PART_BYTES = PART_BYTES
    content = large_trace()
    report = folder / "calls.json"
    with s3.serving(PART_BYTES) as environment:
        os.environ.update(environment)
        kill_at, killed = 0, True
        while killed:
            run_dir = folder / f"run-{kill_at}"
            (run_dir / "traces" / "spool").mkdir(parents=True)
            (run_dir / "traces" / "spool" / NAME).write_bytes(content)
            killed = collect_in_child(run_dir, kill_at, report)
            if killed:
                print(check(run_dir, content, report), flush=True)
            shutil.rmtree(run_dir)
            kill_at += 1
    return 0


def check(run_dir: Path, content: bytes, report: Path) -> int:
    """Collect again, and check the store and the run folder; returns the number of parts that were sent."""
    assert not collect_in_child(run_dir, -1, report)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    traces = run_dir / "traces"
    (entry,) = trace_files.read_manifest(SharedFolder(run_dir), "manifest-trainer-0.json").traces
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    names = sorted(path.rpartition("/")[2] for path in store.find(f"{s3.BUCKET}/{run_dir.name}"))
    expected = ["manifest-trainer-0.json", f"{NAME}.gz", f"{NAME.removesuffix('.json')}.parquet"]
    assert names == expected, names
    stored = store.cat_file(f"{s3.BUCKET}/{run_dir.name}/traces/{NAME}.gz")
    assert len(stored) == entry.bytes > 2 * PART_BYTES
    assert gzip.decompress(stored) == content
    left = sorted(path.name for path in traces.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert left == expected, left
    assert not list(state_dir(run_dir).iterdir())
    return json.loads(report.read_text()).count("upload_part") if report.exists() else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
