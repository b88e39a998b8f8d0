"""A model, sharded or not, saved in the layout of a Hugging Face folder.

The tensors are gathered one after the other. Rank 0 collects them until a file is full, so no rank ever stores the
whole model, and the folder appears under its name when it is complete.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from muster_components.trainer.errors import InputError, TrainerError
from muster_components.trainer.models.module_tree import unique_tensors, whole_tensor
from muster_components.trainer.models.safetensors_files import INDEX, WEIGHTS

MAX_FILE_BYTES: Final = 2 * 1024**3

Gather = Callable[[str], Tensor | None]
"""The whole tensor of a name; only rank 0 needs it. Every rank calls this with the same names in the same order."""


class FolderWriter:
    """Writes files of at most `max_file_bytes` and their index to a temporary folder, which `publish` renames."""

    def __init__(self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.folder = folder
        self.temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
        self.temporary.mkdir(parents=True)
        self._max_file_bytes = max_file_bytes
        self._pending: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one tensor in host memory."""
        if self._pending and _size(self._pending.values()) + _size([tensor]) > self._max_file_bytes:
            self._flush()
        self._pending[name] = tensor.contiguous()

    def publish(self) -> None:
        """Write the rest and the index, then replace `folder` if it was saved before. Raises OSError."""
        self._flush()
        count = len(self._files)
        names = [WEIGHTS] if count == 1 else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        for number, name in enumerate(names):
            (self.temporary / str(number)).rename(self.temporary / name)
        if count > 1:
            weight_map = {tensor: name for name, of_file in zip(names, self._files, strict=True) for tensor in of_file}
            index = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            (self.temporary / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        self._remove_earlier()
        os.replace(self.temporary, self.folder)

    def _remove_earlier(self) -> None:
        """Remove a folder that was saved before; any other is left, and the rename fails."""
        if (self.folder / WEIGHTS).is_file() or (self.folder / INDEX).is_file():
            shutil.rmtree(self.folder)

    @staticmethod
    def may_replace(folder: Path) -> bool:
        """Whether `publish` may replace what is at `folder`: nothing, an empty folder, or one saved before."""
        if not folder.exists() or (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
            return True
        return folder.is_dir() and not any(folder.iterdir())

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _flush(self) -> None:
        save_file(self._pending, self.temporary / str(len(self._files)), metadata={"format": "pt"})
        self._files.append(list(self._pending))
        self._total_bytes += _size(self._pending.values())
        self._pending = {}


def require_savable(folder: Path) -> None:
    """Before training. Every rank calls it; raises InputError on all if rank 0 could not save a model in `folder`."""
    problem: str | None = None
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            writer = FolderWriter(folder)
            writer.discard()
            if not writer.may_replace(folder):
                problem = "it exists and is not a model that was saved there"
        except (OSError, ValueError) as error:  # "/" has no name
            problem = str(error)
    if dist.is_initialized():
        problems = [problem]
        dist.broadcast_object_list(problems, src=0)
        problem = problems[0]
    if problem is not None:
        raise InputError(f"--save_pretrained must be a folder that can be written; got {folder}: {problem}")


@torch.no_grad()
def save_weights(
    module: nn.Module,
    folder: Path,
    *,
    gather: Gather | None = None,
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
    groups: Sequence[nn.Module] = (),
    write_config: Callable[[Path], None] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Save parameters and persistent buffers in Hugging Face's layout. Every rank calls it; rank 0 writes.

    `gather`: default: the tensors of `module`; with it, `module` only has the names, and may be on the meta device.
    `rename` maps tensors by name in the model to tensors by name in the files. It is called with the tensors of one of
    `groups`, since some are computed together, and with each of the others alone. `write_config` writes further files
    into the folder. Raises TrainerError on all ranks if rank 0 cannot write.
    """
    gather = gather or _gather_from(module)
    is_rank0 = not dist.is_initialized() or dist.get_rank() == 0
    writer: FolderWriter | None = None
    failure: str | None = None
    try:
        if is_rank0:
            writer = FolderWriter(folder, max_file_bytes)
    except OSError as error:
        failure = str(error)
    for names in _grouped(module, groups):
        gathered = {}
        for name in names:
            # Every rank takes part in every gather, also after rank 0 has failed.
            whole = gather(name)
            if writer is not None and failure is None:
                assert whole is not None  # on rank 0
                gathered[name] = whole.detach().to("cpu", copy=True)
            del whole
        try:
            if writer is not None and failure is None:
                for name, tensor in rename(gathered).items():
                    writer.add(name, tensor)
        except (OSError, SafetensorError) as error:
            failure = str(error)
    try:
        if writer is not None and failure is None:
            if write_config is not None:
                write_config(writer.temporary)
            writer.publish()
    except (OSError, SafetensorError) as error:
        failure = str(error)
    if writer is not None and failure is not None:
        writer.discard()
    if dist.is_initialized():
        failures = [failure]
        dist.broadcast_object_list(failures, src=0)
        failure = failures[0]
    if failure is not None:
        raise TrainerError(f"cannot save the model to {folder}: {failure}")


def _gather_from(module: nn.Module) -> Gather:
    tensors = dict(unique_tensors(module))
    return lambda name: whole_tensor(tensors[name])


def _grouped(module: nn.Module, groups: Sequence[nn.Module]) -> list[list[str]]:
    """The names of the tensors in their order, those of each group together."""
    prefixes = {
        name: number for number, group in enumerate(groups) for name, one in module.named_modules() if one is group
    }
    together: dict[object, list[str]] = {}
    for name, _ in unique_tensors(module):
        parts = name.split(".")
        inside = (prefixes.get(".".join(parts[:end])) for end in range(1, len(parts)))
        key: object = next((number for number in inside if number is not None), name)
        together.setdefault(key, []).append(name)
    return list(together.values())


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
