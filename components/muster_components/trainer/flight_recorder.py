"""Dumps of torch's flight recorder, which knows the newest collectives of this rank, while the rank hangs.

The launcher writes the path of a file into a named pipe beside the file for stacks, and a thread writes the dump there.
The thread runs while the rank waits in a collective or for its device, since torch then does not hold the GIL. Until a
request comes it costs nothing; the recorder itself is on by default in torch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from muster_components.trainer.regular_files import replace_file

REQUESTS_SUFFIX: Final = ".requests"
"""Of the pipe, after the path of the file for stacks."""
_MAX_REQUEST_BYTES: Final = 4096


def serve_flight_recorder(environ: Mapping[str, str]) -> None:
    """Answer the launcher's requests in a thread of its own, if there is a launcher."""
    path = environ.get("MUSTER_STACKS_FILE", "")
    if not path:
        return
    with contextlib.suppress(OSError):
        # Also for writing: a pipe without a writer is at its end. Data loaders must not get it.
        requests = os.open(path + REQUESTS_SUFFIX, os.O_RDWR | os.O_CLOEXEC)
        threading.Thread(target=_serve, args=(requests,), name="flight-recorder", daemon=True).start()


def recorded_collectives() -> dict[str, Any]:
    """The newest collectives of all backends in torch's format without stacks, whose symbols take seconds to find.

    The key `muster` has the rank, the Unix time, and the rank's process groups with their ranks, which torch does not
    record of gloo's, and the number of collectives called by backend, however many entries the recorder has kept.
    """
    found: dict[str, Any] = {"entries": [], "pg_config": {}, "pg_status": {}}
    groups: dict[str, dict[str, Any]] = {}
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        import torch._C._distributed_c10d as c10d
        from torch.distributed import distributed_c10d

        for name in ("_dump_nccl_trace", "_dump_fr_trace"):
            dump = getattr(c10d, name, None)
            part = pickle.loads(dump(includeStackTraces=False)) if dump is not None else {}
            found["version"] = part.get("version", "")
            found["entries"] += part.get("entries", [])
            for key in ("pg_config", "pg_status"):
                found[key].update(part.get(key, {}))
        world = distributed_c10d._world
        for group, ranks in list(world.pg_group_ranks.items()):
            if group in world.pg_names:  # else this rank is no member
                description = getattr(group, "group_desc", "") or ""
                groups[world.pg_names[group]] = {
                    "desc": description,
                    "ranks": sorted(ranks, key=ranks.__getitem__),
                    "entered": _collectives_called(group),
                }
        found["muster"] = {"rank": distributed.get_rank(), "groups": groups, "time_ns": time.time_ns()}
    return found


def _collectives_called(group: Any) -> dict[str, int]:
    """By backend. Groups of backends that do not count are left out."""
    with contextlib.suppress(RuntimeError, AttributeError):
        backends = [group._get_backend(device) for device in group._device_types]
        return {backend.name(): backend._get_sequence_number_for_group() for backend in backends}
    return {}


def _serve(requests: int) -> None:
    rest = b""
    while True:
        *lines, rest = (rest + os.read(requests, _MAX_REQUEST_BYTES)).split(b"\n")
        for line in lines:
            # A dump that fails must not end the thread, nor write a traceback into the job's log.
            with contextlib.suppress(Exception):
                path = Path(os.fsdecode(line))
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, pickle.dumps(recorded_collectives()))
