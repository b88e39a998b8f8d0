"""How many collectives this rank has called in each process group, and their sizes, as torch records them anyway."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from math import prod
from typing import Any, Final

from muster_components.trainer.flight_recorder import recorded_collectives

_MAX_GROUPS: Final = 16
# Bytes of an element, by torch's name of the type in C++.
_ITEM_BYTES: Final = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e4m3fnuz", "Float8_e5m2", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short", "UInt16"), 2),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


def collective_counts() -> dict[str, int]:
    """By description of a group (`default_pg`, `mesh_fsdp`); groups of one description are added up. Empty without
    torch.distributed. gloo and NCCL count; groups of other backends are left out if they do not."""
    counts: dict[str, int] = {}
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return counts
    from torch.distributed import distributed_c10d

    for group, name in list(distributed_c10d._world.pg_names.items()):
        description = getattr(group, "group_desc", "") or ""
        label = name if description in ("", "undefined") else description
        if not isinstance(group, distributed.ProcessGroup) or (len(counts) >= _MAX_GROUPS and label not in counts):
            continue
        with contextlib.suppress(RuntimeError):
            backends = [group._get_backend(device) for device in group._device_types]
            distinct = {id(backend): backend for backend in backends}.values()  # one may serve several devices
            called = sum(backend._get_sequence_number_for_group() for backend in distinct)
            counts[label] = counts.get(label, 0) + called
    return counts


def mean_collective_bytes(since: float) -> float | None:
    """Mean bytes of the collectives that this rank has called since then (Unix seconds): of each the larger one of its
    input and output on this rank, as nccl-tests counts.

    By torch's flight recorder, which has the newest 2000 calls by default. None if it has none since then, or one of
    an unknown type of element. Operations of one coalesced call count as one collective, as in `collective_counts`.
    """
    calls: dict[tuple[object, object], int] = {}
    # The recorder's format depends on torch's version, and training must not stop because of it.
    with contextlib.suppress(Exception):
        for entry in reversed(recorded_collectives()["entries"]):
            if entry["time_created_ns"] < since * 1e9:
                break
            if not entry["is_p2p"]:
                call = entry["process_group"], entry["collective_seq_id"]
                calls[call] = calls.get(call, 0) + max(_bytes(entry, "input"), _bytes(entry, "output"))
        return sum(calls.values()) / len(calls) if calls else None
    return None


def _bytes(entry: Mapping[str, Any], side: str) -> int:
    sizes = zip(entry[f"{side}_sizes"], entry[f"{side}_dtypes"], strict=True)
    return sum(prod(size) * _ITEM_BYTES[dtype] for size, dtype in sizes)
