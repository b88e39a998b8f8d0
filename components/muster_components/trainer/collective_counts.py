"""How many collectives this rank has called in each process group, as torch counts them anyway."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

_MAX_GROUPS: Final = 16


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
