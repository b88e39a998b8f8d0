"""Load the files of a checkpoint without running code from them.

torch.distributed.checkpoint stores its metadata (`.metadata`) and values other than tensors (an optimizer's options)
as pickles. torch 2.11 to 2.15 loads both without restrictions, and only tensors with `weights_only=True`. Here metadata
may only contain torch's metadata classes, and all values are loaded with `weights_only=True`, after a check that their
pickles do not use values again and again: torch would hash a tuple of tuples of tuples for ever.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.planner import ReadItem

from muster_components.trainer.checkpoint_manifest import METADATA, is_file_name
from muster_components.trainer.metadata_unpickler import MetadataUnpickler
from muster_components.trainer.regular_files import open_regular

_MAX_VALUE_PICKLE: Final = 1 << 16  # that of a tensor has 200 bytes, without its data
_MAX_REUSES: Final = 8  # that of a parameter has one
_REUSES: Final = frozenset({"GET", "BINGET", "LONG_BINGET", "DUP"})


class CheckedReader(FileSystemReader):
    """Reads shards by metadata that has been checked already."""

    def __init__(self, folder: Path, metadata: dcp.Metadata) -> None:
        super().__init__(folder)
        self.fs = _RegularFileSystem()
        self._metadata = metadata

    def read_metadata(self) -> dcp.Metadata:  # without torch's keywords, which are for metadata of one rank
        """The metadata given to the constructor."""
        return self._metadata

    def _slice_file(self, file: Any, sinfo: _StorageInfo) -> IO[bytes]:
        """The part of a file that has one value. Raises UnpicklingError, BadZipFile, ValueError of a damaged pickle."""
        _check_pickle(io.BufferedReader(_Part(file, sinfo.offset, sinfo.length)))
        return super()._slice_file(file, sinfo)


class CheckedPlanner(DefaultLoadPlanner):
    """Loads values other than tensors without executing code from them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """torch's method loads any pickle, so it gets one that was written here. Raises UnpicklingError."""
        trusted = io.BytesIO()
        torch.save(torch.load(value, weights_only=True), trusted)
        trusted.seek(0)
        super().load_bytes(read_item, trusted)


def read_metadata(folder: Path, files: Collection[str] | None) -> dcp.Metadata:
    """`.metadata` of a checkpoint, whose shards must be among `files` (None: any file in the folder).

    Raises OSError, UnpicklingError for classes that are not allowed, ValueError for invalid values.
    """
    with open_regular(folder / METADATA) as stream:
        metadata = MetadataUnpickler(stream).load()
    if not isinstance(metadata, dcp.Metadata) or not isinstance(metadata.storage_data, dict):
        raise ValueError(f"{METADATA} must contain the metadata of a checkpoint")
    _check_chunks(metadata)
    _check_sizes(metadata)
    for stored in metadata.storage_data.values():
        name = stored.relative_path if isinstance(stored, _StorageInfo) else None
        if not isinstance(name, str) or not is_file_name(name) or (files is not None and name not in files):
            shown = repr(name) if isinstance(name, str) else f"a {type(name).__name__}"
            raise ValueError(f"{METADATA} must refer to files of this checkpoint; got {shown}")
    return metadata


def _check_chunks(metadata: dcp.Metadata) -> None:
    """Raises ValueError for more chunks than there are in files: in a hostile pickle, tensors share a long list, and
    torch compares the chunks of each tensor with its shards."""
    stored: Any = metadata.state_dict_metadata
    tensors = stored.values() if isinstance(stored, dict) else ()
    chunks = [one.chunks for one in tensors if isinstance(one, dcp.TensorStorageMetadata)]
    if not all(isinstance(one, list) for one in chunks) or sum(map(len, chunks)) > len(metadata.storage_data):
        raise ValueError(f"{METADATA} must have a place in a file for each chunk of a tensor")


def _check_sizes(metadata: dcp.Metadata) -> None:
    """Raises ValueError for a tensor of another size than numbers: torch's error for an unexpected size shows it, and
    the text of nested lists may fit into no memory."""
    stored: Any = metadata.state_dict_metadata
    tensors = stored.values() if isinstance(stored, dict) else ()
    if not all(
        type(one.__dict__.get("size")) is torch.Size for one in tensors if isinstance(one, dcp.TensorStorageMetadata)
    ):
        raise ValueError(f"{METADATA} must have tensors with a size of numbers")


class _Part(io.RawIOBase):
    """A part of an open file, which torch's own class cannot read to its end."""

    def __init__(self, file: IO[bytes], offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._offset + self._at)
        content = self._file.read(max(0, min(len(buffer), self._length - self._at)))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


def _check_pickle(saved: IO[bytes]) -> None:
    """Check the pickle of a value that torch.save wrote: if none is used again, no key is longer than the pickle."""
    with zipfile.ZipFile(saved) as archive:
        for record in archive.infolist():
            if PurePosixPath(record.filename).name != "data.pkl":
                continue
            if record.file_size > _MAX_VALUE_PICKLE:
                size = record.file_size
                raise pickle.UnpicklingError(f"the pickle of a value must have {_MAX_VALUE_PICKLE} bytes; got {size}")
            opcodes = [opcode.name for opcode, _, _ in pickletools.genops(archive.read(record))]
            if sum(name in _REUSES for name in opcodes) > _MAX_REUSES:
                raise pickle.UnpicklingError(f"the pickle of a value must use at most {_MAX_REUSES} values again")


class _RegularFileSystem(FileSystem):
    """Local files; opens only regular files."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "rb":
            raise io.UnsupportedOperation(f"mode must be 'rb'; got {mode!r}")
        with open_regular(Path(path)) as stream:
            yield cast(io.IOBase, stream)
