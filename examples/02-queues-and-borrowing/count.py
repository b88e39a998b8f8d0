"""Counts to a number, 0.1 s per step, and resumes after evictions: a minimal script with checkpoints.

On SIGTERM it finishes its step, writes a checkpoint, and ends. When it starts, it resumes from the checkpoint.
docs/reference/run-folder.md defines the names of the files; a real trainer writes the same ones.

    python count.py STEPS [FILE]     with FILE, the last step waits until that file exists in the run folder
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

steps = int(sys.argv[1])
run_dir = Path(os.environ["MUSTER_RUN_DIR"])
awaited = run_dir / sys.argv[2] if len(sys.argv) > 2 else None
attempt = int(os.environ["MUSTER_ATTEMPT"])
writes = os.environ["MUSTER_REPLICA"] == "0"  # one pod writes for all
latest = run_dir / "checkpoints" / "latest"

stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda signal_number, frame: stopping.set())


def replace(path: Path, content: dict[str, object]) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)


def save(step: int) -> None:
    """Write the checkpoint."""
    if writes:
        replace(latest, {"step": step, "attempt": attempt, "path": "", "at": time.time()})
        print(f"checkpoint at step {step}", flush=True)


step = json.loads(latest.read_text())["step"] if latest.exists() else 0
print(f"attempt {attempt} starts at step {step}", flush=True)
metrics = run_dir / "metrics" / "rank-0.jsonl"
metrics.parent.mkdir(parents=True, exist_ok=True)

while step < steps and not stopping.is_set():
    time.sleep(0.1)
    if step == steps - 1 and awaited is not None and not awaited.exists():
        continue
    step += 1
    if writes:
        with metrics.open("a") as file:
            file.write(json.dumps({"step": step, "attempt": attempt, "at": time.time()}) + "\n")
        heartbeat = {"rank": 0, "world_size": 2, "attempt": attempt, "step": step, "steps": steps, "at": time.time()}
        replace(run_dir / "heartbeats" / "rank-0.json", heartbeat | {"phase": "train", "step_time_s": 0.1})

save(step)
if step < steps:
    sys.exit(128 + signal.SIGTERM)
