"""Dumps of torch's flight recorder in the format that torch 2.11 and 2.13 write (version 2.10), for ranks that hang."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

CALLED_NS = 1_795_458_652_000_000_000
"""When collective 0 was called; each later one a nanosecond after the one before."""


def entry(
    sequence: int,
    operation: str = "nccl:_all_gather_base",
    group: tuple[str, str] = ("1", "mesh_fsdp"),
    state: str = "completed",
    **changes: Any,
) -> dict[str, Any]:
    """One collective; `state` as torch reports it: scheduled, started or completed."""
    fields: dict[str, Any] = {
        "record_id": sequence, "pg_id": 0, "process_group": group, "thread_name": "python", "thread_id": "1",
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "profiling_name": operation,
        "time_created_ns": CALLED_NS + sequence, "input_sizes": [[16]], "input_dtypes": ["Float"],
        "output_sizes": [[32]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": None if state == "scheduled" else 1,
        "time_discovered_completed_ns": 2 if state == "completed" else None,
        "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return fields | changes


def transfer(
    operation: str, sequence: int = 1, group: tuple[str, str] = ("2", "mesh_pp"), state: str = "started"
) -> dict[str, Any]:
    """A send or receive, such as `nccl:recv 1<-0`."""
    return entry(sequence, operation, group, state, is_p2p=True, collective_seq_id=0, p2p_seq_id=sequence)


def batch(
    *operations: str,
    sequence: int = 1,
    group: tuple[str, str] = ("2", "mesh_pp"),
    state: str = "scheduled",
    collectives: int = 0,
) -> list[dict[str, Any]]:
    """Sends and receives of one batch. `state`: of its last entry, which counts as a collective, as torch 2.11 writes
    it; `collectives`: how many the group has called before."""
    parts = [
        transfer(f"nccl:{one}", sequence, group, "scheduled") | {"op_id": 100 * sequence + place}
        for place, one in enumerate(operations)
    ]
    last = entry(collectives, "nccl:coalesced", group, state, p2p_seq_id=sequence, op_id=parts[-1]["op_id"])
    return [*parts, last | {"input_sizes": [], "input_dtypes": [], "output_sizes": [], "output_dtypes": []}]


def dump(
    *entries: dict[str, Any], groups: dict[str, tuple[str, str]] | None = None, overwritten: int = 0
) -> dict[str, Any]:
    """A dump with these collectives; `groups`: description and ranks by name, as torch writes them of NCCL;
    `overwritten`: how many older entries the ring has lost."""
    records = [one | {"record_id": overwritten + place} for place, one in enumerate(entries)]
    config = {name: {"name": name, "desc": desc, "ranks": ranks} for name, (desc, ranks) in (groups or {}).items()}
    return {
        "version": "2.10", "comm_lib_version": "2.27.5", "pg_config": config, "pg_status": {}, "entries": records,
    }  # fmt: skip


def dumped_after(content: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The dump as Muster's trainer writes it: with its time, so long after the first collective."""
    return content | {"muster": {"groups": {}, "time_ns": CALLED_NS + round(seconds * 1e9)}}


def write_dumps(folder: Path, dumps: dict[int, dict[str, Any]], prefix: str = "nccl_trace_rank_") -> list[Path]:
    """The files that torch's watchdog writes, by rank."""
    paths = []
    for rank, content in dumps.items():
        paths.append(folder / f"{prefix}{rank}")
        paths[-1].write_bytes(pickle.dumps(content))
    return paths
