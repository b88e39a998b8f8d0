"""Reads the pickle of a memory snapshot or of a flight recorder without running anything that it contains.

torch writes both as pickles, and a pickle may name any function to call. Only dicts, lists, tuples, strings and
numbers are accepted here, of a bounded size: an attempt to build anything else names the class and ends the reading.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from muster.errors import InvalidTrace
from muster.tracing.formatting import format_bytes
from muster.tracing.shared_folder import open_regular

_PICKLE_MAGIC: Final = b"\x80"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BUFFER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits for one snapshot: bytes of the pickle (unpacked, if it is compressed), bytes of this process's address
    space that reading it may take, and events and blocks in it."""

    pickle_bytes: int = 4 << 30
    memory_bytes: int = 24 << 30
    events: int = 4_000_000


DEFAULT_MEMORY_LIMITS: Final = MemoryLimits()


def read_pickle(path: Path, limits: MemoryLimits = DEFAULT_MEMORY_LIMITS) -> Any:
    """The value in a pickle, which may be compressed with gzip.

    While the pickle is read, the address space of this process may grow by at most `limits.memory_bytes` (Linux).
    Raises InvalidTrace if the file is no pickle, is truncated, is larger than `limits`, or contains anything but
    builtin containers and scalars; OSError if it cannot be read.
    """
    with open_regular(path) as file:
        return read_open_pickle(file, path, limits, "a memory snapshot")


def read_open_pickle(file: IO[bytes], path: Path, limits: MemoryLimits, what: str) -> Any:
    """As `read_pickle`, of an open file of `what`, whose path is for messages only."""
    magic = file.read(2)
    file.seek(0)
    if magic[:1] != _PICKLE_MAGIC and magic != _GZIP_MAGIC:
        found = "the file is empty" if not magic else f"it begins with {magic!r}"
        raise InvalidTrace(f"{path}: must be a pickle of {what}; {found}")
    unpacked: IO[bytes] = gzip.GzipFile(fileobj=file) if magic == _GZIP_MAGIC else file  # type: ignore[assignment]
    bounded = _Bounded(unpacked, limits.pickle_bytes)
    try:
        with _limited_address_space(limits.memory_bytes):
            return _PlainUnpickler(io.BufferedReader(bounded, _BUFFER_BYTES)).load()
    except InvalidTrace as error:
        raise InvalidTrace(f"{path}: {error}") from None
    except MemoryError:
        limit = format_bytes(limits.memory_bytes)
        raise InvalidTrace(f"{path}: needs more than {limit} of memory to be read") from None
    except (OSError, zlib.error) as error:
        raise InvalidTrace(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # a damaged pickle can raise anything
        if bounded.at_end and _is_truncation(error):
            where = f"the file ends at byte {bounded.position} inside the pickle"
            raise InvalidTrace(f"{path}: truncated: {where}") from None
        raise InvalidTrace(f"{path}: the pickle is damaged: {error}") from error


def _is_truncation(error: Exception) -> bool:
    return isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error)


class _PlainUnpickler(pickle.Unpickler):
    """Accepts builtin containers and scalars only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Reject every class and function."""
        what = f"{module}.{name}"[:200]
        raise InvalidTrace(f"must contain dicts, lists, tuples, strings and numbers only; got {what}, which is not run")

    def persistent_load(self, _identifier: object) -> NoReturn:
        """Reject references to objects outside the pickle, such as storages of torch.save."""
        raise InvalidTrace("must contain its data; got a reference to an object outside the pickle (of torch.save?)")


class _Bounded(io.RawIOBase):
    """A stream that raises InvalidTrace after `limit` bytes, and knows whether it has been read to its end."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.position = 0
        self.at_end = False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; returns the number of bytes."""
        try:
            content = self._stream.read(len(buffer))
        except EOFError:  # a truncated gzip file
            content = b""
        self.position += len(content)
        self.at_end = not content
        if self.position > self._limit:
            raise InvalidTrace(f"must have at most {self._limit} bytes (unpacked)")
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _limited_address_space(more_bytes: int) -> Iterator[None]:
    """Within the block an allocation that lets this process grow by more than `more_bytes` raises MemoryError.

    The limit is that of the process, so an allocation of another thread may fail meanwhile too. That is why snapshots
    are read by a command, which has one thread; a collector, whose HTTP thread reads dumps of at most 8 MiB, has spare
    128 MiB for its other thread, and takes a failed allocation for a failed trace, which it retries.
    """
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the bytes of the file are the only bound
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + more_bytes
    lower = min(limit for limit in (soft, wanted) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (lower, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
