"""The history of a GPU's memory: allocations with their stacks, as torch's CUDA allocator records them.

The snapshot is torch's own format (a pickle), which PyTorch's page memory_viz shows. The key `muster` is added:
the addresses of parameters, gradients and the optimizer's state, which `muster memory` could not tell apart otherwise
(docs/reference/run-folder.md).
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

MAX_HISTORY: Final = 200_000
"""Newest allocations and frees that are kept, which bounds host memory."""


def snapshot_refusal() -> str:
    """Why this process can write no memory snapshot; empty if it can."""
    if not torch.cuda.is_available():
        return "memory snapshots are of torch's CUDA allocator; no GPU is used"
    backend = torch.cuda.memory.get_allocator_backend()
    if backend != "native":
        return f"memory snapshots are of torch's native CUDA allocator; this process uses {backend}"
    return ""


def start_memory_history() -> None:
    """Record allocations and frees from now on. A history that the program itself records is replaced.

    Raises RuntimeError if torch cannot record, for example with another allocator than its own.
    """
    torch.cuda.memory._record_memory_history(max_entries=MAX_HISTORY)


def stop_memory_history() -> None:
    """Record no more, and drop the history. An allocator that cannot record is left as it is."""
    with contextlib.suppress(RuntimeError):
        torch.cuda.memory._record_memory_history(enabled=None)


def write_memory_snapshot(path: Path) -> None:
    """Write the snapshot atomically, and stop recording. Raises OSError, RuntimeError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        snapshot = torch.cuda.memory._snapshot()
        snapshot["muster"] = {"tensors": known_tensors("cuda")}
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            pickle.dump(snapshot, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        stop_memory_history()
        temporary.unlink(missing_ok=True)


def known_tensors(device_type: str) -> list[dict[str, Any]]:
    """Category, address and bytes of the storages of parameters, gradients and optimizer state on devices of this type.

    They are those of all modules and optimizers that exist in this process, so that it works for any program.
    """
    found: dict[int, dict[str, Any]] = {}
    for owner in gc.get_objects():
        # A module or an optimizer of another library that behaves differently must not end the training.
        with contextlib.suppress(Exception):
            for category, tensor in _owned_tensors(owner):
                local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
                storage = local.untyped_storage()
                if local.device.type == device_type and storage.nbytes():
                    entry = {"category": category, "address": storage.data_ptr(), "bytes": storage.nbytes()}
                    found.setdefault(storage.data_ptr(), entry)
    return list(found.values())


def _owned_tensors(owner: object) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a module or an optimizer; nothing for other objects."""
    kind = type(owner)  # isinstance would run code of lazy objects
    if issubclass(kind, nn.Module):
        parameters = list(owner.__dict__["_parameters"].values())
    elif issubclass(kind, torch.optim.Optimizer):
        assert isinstance(owner, torch.optim.Optimizer)
        parameters = [parameter for group in owner.param_groups for parameter in group["params"]]
        for state in owner.state.values():
            yield from (("optimizer_state", value) for value in state.values() if isinstance(value, Tensor))
    else:
        return
    for parameter in parameters:
        if parameter is not None:
            yield "parameter", parameter
            if parameter.grad is not None:
                yield "gradient", parameter.grad
