"""Write the files of a checkpoint with their digests, and load them without running code from them.

torch.distributed.checkpoint stores its metadata (`.metadata`) and values other than tensors (an optimizer's options)
as pickles. torch 2.11 to 2.15 loads both without restrictions, and only tensors with `weights_only=True`. Here metadata
may only contain torch's metadata classes, and all values are loaded with `weights_only=True`, after a check that their
pickles do not use values again and again: torch would hash a tuple of tuples of tuples for ever.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import pickletools
import zipfile
from collections.abc import Collection, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from muster_components.trainer.checkpoint_manifest import FileDigest, is_file_name
from muster_components.trainer.metadata_unpickler import METADATA, MetadataUnpickler
from muster_components.trainer.regular_files import open_regular

_MAX_VALUE_PICKLE: Final = 1 << 16  # that of a tensor has 200 bytes, without its data
_MAX_REUSES: Final = 8  # that of a parameter has one
_REUSES: Final = frozenset({"GET", "BINGET", "LONG_BINGET", "DUP"})
_THREADED_HASH_BYTES: Final = 1 << 20  # smaller writes are hashed faster than they are handed to another thread


class HashingWriter(FileSystemWriter):
    """Writes and hashes one file per rank; after `finish`, `files` on rank 0 has the digests of all ranks' files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, single_file_per_rank=True)
        self.fs = self._hashing = _HashingFileSystem()
        self.files: tuple[FileDigest, ...] = ()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """As torch's; appends the digests of this rank's files to its results, which are sent to rank 0."""
        written: list[Any] = [*super().write_data(plan, planner).value(), *self._hashing.digests.values()]
        future: Future[list[WriteResult]] = Future()
        future.set_result(written)
        return future

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, after all ranks have written: separate the digests from the results that torch gets."""
        all_results: list[Any] = [result for of_rank in results for result in of_rank]
        digests = [result for result in all_results if isinstance(result, FileDigest)]
        super().finish(metadata, [[result for result in all_results if not isinstance(result, FileDigest)]])
        self.files = (*digests, self._hashing.digests[METADATA])


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
    for stored in metadata.storage_data.values():
        name = stored.relative_path if isinstance(stored, _StorageInfo) else None
        if not isinstance(name, str) or not is_file_name(name) or (files is not None and name not in files):
            raise ValueError(f"{METADATA} must refer to files of this checkpoint; got {name!r}")
    return metadata


def _check_chunks(metadata: dcp.Metadata) -> None:
    """Raises ValueError for more chunks than there are in files: in a hostile pickle, tensors share a long list, and
    torch compares the chunks of each tensor with its shards."""
    stored: Any = metadata.state_dict_metadata
    tensors = stored.values() if isinstance(stored, dict) else ()
    chunks = [one.chunks for one in tensors if isinstance(one, dcp.TensorStorageMetadata)]
    if not all(isinstance(one, list) for one in chunks) or sum(map(len, chunks)) > len(metadata.storage_data):
        raise ValueError(f"{METADATA} must have a place in a file for each chunk of a tensor")


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


class _HashingFileSystem(FileSystem):
    """Local files; `digests` has the digests of written files by name."""

    def __init__(self) -> None:
        self.digests: dict[str, FileDigest] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        if mode != "wb":
            raise io.UnsupportedOperation(f"mode must be 'wb'; got {mode!r}")
        with ThreadPoolExecutor(max_workers=1) as pool, _HashingStream(io.FileIO(path, "wb"), pool) as stream:
            yield stream
            if not stream.closed:  # torch before 2.15 syncs its metadata without a flush
                stream.flush()
                os.fsync(stream.fileno())
        name = Path(path).name
        self.digests[name] = FileDigest(name, stream.size, stream.sha256.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        name = Path(new_path).name
        self.digests[name] = replace(self.digests.pop(Path(path).name), name=name)


class _HashingStream(io.BufferedWriter):
    """A new file that is hashed while it is written."""

    def __init__(self, raw: io.FileIO, pool: Executor) -> None:
        """`pool` hashes large blocks while they are written."""
        super().__init__(raw)
        self._pool = pool
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size < _THREADED_HASH_BYTES:
            self.sha256.update(data)
            super().write(data)
        else:
            hashing = self._pool.submit(self.sha256.update, data)
            super().write(data)
            hashing.result()
        self.size += size
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("a file that is hashed must be written sequentially")
