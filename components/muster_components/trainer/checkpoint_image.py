"""The files of a checkpoint as they are in memory: which tensor of this rank goes where.

torch.distributed.checkpoint decides which rank saves what. Its files are a sequence of small archives, one for each
tensor, as `torch.save` writes them. The archives are made once, without the data: a save only copies the tensors into
their places, and writing the files needs neither torch nor Python objects. As with
`torch.serialization.set_crc32_options(False)`, the archives have no valid CRC of the data: `torch.load` does not read
it, and `muster.json` has a SHA-256 of each file.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from muster_components.trainer.checkpoint_manifest import METADATA
from muster_components.trainer.checkpoint_memory import SlotFile

_ALIGNMENT: Final = 64
_FILE_BYTES: Final = 128 << 20  # smaller ones are written faster than they are shared among threads


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A tensor that is copied at `offset` of the image in every save."""

    name: str
    source: Tensor
    offset: int


@dataclass(frozen=True, slots=True)
class CheckpointImage:
    """This rank's files of every checkpoint, until the state has other tensors. `constant`: bytes by offset, the same
    in each save. `fixed` is False if there are values other than tensors, which each save needs to read anew."""

    parts: tuple[ImagePart, ...]
    constant: tuple[tuple[int, bytes], ...]
    files: tuple[SlotFile, ...]
    size: int
    fixed: bool


def plan_image(state: Mapping[str, Any], group: dist.ProcessGroup, max_files: int) -> CheckpointImage:
    """Agree with the other ranks on who saves what. Every rank calls it. Raises RuntimeError on all ranks."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(state), is_coordinator=dist.get_rank() == 0)
    plan, metadata = _agree(planner, planner.create_local_plan(), group)
    values = {item.index: planner.resolve_data(item) for item in planner.finish_plan(plan).items}
    sizes = {index: _size(value) for index, value in values.items()}
    layout = _Layout()
    stored: dict[MetadataIndex, _StorageInfo] = {}
    for number, indices in enumerate(_split(sizes, max_files)):
        name, start = f"__{dist.get_rank()}_{number}.distcp", layout.at
        for index in indices:
            offset, length = layout.add(index.fqn, values[index])
            stored[index] = _StorageInfo(name, offset - start, length)
        layout.end_file(name, start)
    gathered: list[Any] = [None] * dist.get_world_size() if dist.get_rank() == 0 else []
    dist.gather_object(stored, gathered or None, dst=0, group=group)
    if metadata is not None:
        metadata.storage_data = {index: info for of_rank in gathered for index, info in of_rank.items()}
        start = layout.at
        layout.add_bytes(pickle.dumps(metadata))
        layout.end_file(METADATA, start)
    fixed = not any(isinstance(value, io.BytesIO) for value in values.values())
    return CheckpointImage(tuple(layout.parts), tuple(layout.constant), tuple(layout.files), layout.at, fixed)


def _agree(planner: DefaultSavePlanner, plan: SavePlan, group: dist.ProcessGroup) -> tuple[SavePlan, Any]:
    """The final plan of this rank, and on rank 0 the metadata."""
    is_rank0, world_size = dist.get_rank() == 0, dist.get_world_size()
    plans: list[Any] = [None] * world_size
    dist.gather_object(plan, plans if is_rank0 else None, dst=0, group=group)
    metadata = None
    outcome: list[Any] = plans
    if is_rank0:
        try:
            outcome, metadata = planner.create_global_plan(plans)
        except Exception as error:  # the other ranks wait
            outcome = [f"{type(error).__name__}: {error}"] * world_size
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, outcome if is_rank0 else None, src=0, group=group)
    if isinstance(mine[0], str):
        raise RuntimeError(f"the checkpoint cannot be planned: {mine[0]}")
    return mine[0], metadata


def _split(sizes: Mapping[MetadataIndex, int], max_files: int) -> list[list[MetadataIndex]]:
    """The items of each file, so that threads have about the same to write; an empty file if there are none."""
    count = max(1, min(max_files, sum(sizes.values()) // _FILE_BYTES, len(sizes)))
    files: list[tuple[int, int, list[MetadataIndex]]] = [(0, number, []) for number in range(count)]
    for index, size in sorted(sizes.items(), key=lambda item: -item[1]):
        total, number, items = min(files, key=lambda file: file[:2])
        items.append(index)
        files[number] = (total + size, number, items)
    return [items for _, _, items in files]


def _size(value: Tensor | io.BytesIO) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else value.getbuffer().nbytes


class _Layout:
    """Places of archives, one after the other."""

    def __init__(self) -> None:
        self.at = 0
        self.parts: list[ImagePart] = []
        self.constant: list[tuple[int, bytes]] = []
        self.files: list[SlotFile] = []

    def add(self, name: str, value: Tensor | io.BytesIO) -> tuple[int, int]:
        """Place the archive of a value; returns its offset and length."""
        if isinstance(value, io.BytesIO):
            return self.add_bytes(value.getvalue())
        source = value.to_local() if isinstance(value, DTensor) else value.detach()
        archive = _archive(source.dtype, tuple(source.shape))
        start = self._begin(archive.size)
        self.constant += [(start + at, content) for at, content in archive.segments]
        if archive.data_at is not None:
            self.parts.append(ImagePart(name, source, start + archive.data_at))
        return start, archive.size

    def add_bytes(self, content: bytes) -> tuple[int, int]:
        """Place bytes; returns their offset and length."""
        start = self._begin(len(content))
        self.constant.append((start, content))
        return start, len(content)

    def end_file(self, name: str, start: int) -> None:
        """What was added from `start` on is a file."""
        self.files.append(SlotFile(name, start, self.at - start))
        self.at += -self.at % _ALIGNMENT

    def _begin(self, size: int) -> int:
        start = self.at + -self.at % _ALIGNMENT
        self.at = start + size
        return start


@dataclass(frozen=True, slots=True)
class _Archive:
    """What `torch.save` writes for a tensor, without its data."""

    segments: tuple[tuple[int, bytes], ...]
    data_at: int | None
    size: int


@cache
def _archive(dtype: torch.dtype, shape: tuple[int, ...]) -> _Archive:
    recorder = _Recorder()
    with torch.serialization.skip_data():
        torch.save(torch.empty(shape, dtype=dtype), recorder)  # type: ignore[arg-type]  # memory that is never touched
    return _Archive(tuple(recorder.segments), recorder.skipped_at, recorder.end)


class _Recorder:
    """A file that keeps what is written, and where something was skipped."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, bytes]] = []
        self.skipped_at: int | None = None
        self._at = 0
        self.end = 0

    def write(self, data: Any) -> int:
        content = bytes(data)
        self.segments.append((self._at, content))
        self._at += len(content)
        self.end = max(self.end, self._at)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_CUR:
            raise io.UnsupportedOperation("an archive must be written sequentially")
        self.skipped_at = self._at
        self._at += offset
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass
