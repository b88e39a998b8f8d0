"""A collector's last words: what it has collected, and the newest checkpoint, for whoever can no longer ask it.

Kubernetes takes them from the file that it gives each container for its termination message into the pod's status.
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
    """How many traces a manifest lists that can be read."""
    return sum(entry.status == "ok" for entry in manifest.traces)


def write_termination_message(path: Path, run_folder: SharedFolder, traces: int) -> None:
    """Write {"traces", "checkpoint": {"step", "at"} | null} into a file that is there already, or may be made.

    In place, since the file may be a mount. What cannot be written is left: then nobody is told.
    """
    latest = read_json_object(run_folder, "checkpoints/latest", [])
    checkpoint = None if latest is None else {name: finite_number(latest.get(name)) for name in ("step", "at")}
    told = {"traces": traces, "checkpoint": checkpoint}
    with suppress(OSError):
        path.write_text(json.dumps(told, allow_nan=False))
