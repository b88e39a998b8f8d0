"""The collector's termination message: the number of collected traces and the newest checkpoint.

Kubernetes copies the content of a container's termination message file into the pod's status, where the operator reads
it once the collector no longer answers requests.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from muster.heartbeat import finite_number
from muster.tracing.heartbeat_server import read_json_object
from muster.tracing.manifest import Manifest
from muster.tracing.shared_folder import SharedFolder


def readable_trace_count(manifest: Manifest) -> int:
    """The number of traces with status "ok" in a manifest."""
    return sum(entry.status == "ok" for entry in manifest.traces)


def write_termination_message(path: Path, run_folder: SharedFolder, traces: int) -> None:
    """Write {"traces", "checkpoint": {"step", "at"} | null} to the file, in place, since it may be a mount.

    Errors are ignored.
    """
    latest = read_json_object(run_folder, "checkpoints/latest", [])
    checkpoint = None if latest is None else {name: finite_number(latest.get(name)) for name in ("step", "at")}
    with suppress(OSError):
        path.write_text(json.dumps({"traces": traces, "checkpoint": checkpoint}, allow_nan=False))
