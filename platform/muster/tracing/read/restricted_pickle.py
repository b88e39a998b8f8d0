"""Reads the pickle of a memory snapshot or of a flight recorder without running anything that it contains.

torch writes both as pickles, and a pickle may name any function to call. Only dicts, lists, tuples, strings and
numbers are accepted here, of a bounded size: an attempt to build anything else names the class and ends the reading.
Reading takes linear time: no key of a dict is expensive to hash or to compare. A memory snapshot has gigabytes, so
Python's unpickler reads it, in C, after `pickle_scan`. A dump of a flight recorder is small, and read by
`PlainUnpickler`, which knows each key before it is used.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NoReturn

from muster.errors import InvalidTrace
from muster.tracing.formatting import format_bytes
from muster.tracing.read.pickle_scan import ACCEPTED, OPCODE_NAMES, ScannedPickle
from muster.tracing.shared_folder import open_regular

_PICKLE_MAGIC: Final = b"\x80"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BUFFER_BYTES: Final = 1 << 20
_MAX_KEY, _MAX_KEY_LENGTH, _MAX_INTEGER_BYTES = 2**63, 1024, 9
_MAX_INTEGER_KEYS: Final = 1024
"""Of all dicts together: unlike strings, integers have hashes that can be chosen to collide."""


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
        return _read(file, path, limits, "a memory snapshot", _load_large)


def read_small_pickle(file: IO[bytes], path: Path, limits: MemoryLimits, what: str) -> Any:
    """As `read_pickle`, of an open file of `what` with some megabytes, whose path is for messages only."""
    return _read(file, path, limits, what, lambda stream: PlainUnpickler(stream).load())


def _load_large(stream: io.BufferedIOBase) -> Any:
    return _Unpickler(io.BufferedReader(ScannedPickle(stream), _BUFFER_BYTES)).load()  # type: ignore[arg-type]


def _read(
    file: IO[bytes], path: Path, limits: MemoryLimits, what: str, load: Callable[[io.BufferedReader], Any]
) -> Any:
    magic = file.read(2)
    file.seek(0)
    if magic[:1] != _PICKLE_MAGIC and magic != _GZIP_MAGIC:
        found = "the file is empty" if not magic else f"it begins with {magic!r}"
        raise InvalidTrace(f"{path}: must be a pickle of {what}; {found}")
    unpacked: IO[bytes] = gzip.GzipFile(fileobj=file) if magic == _GZIP_MAGIC else file  # type: ignore[assignment]
    bounded = _Bounded(unpacked, limits.pickle_bytes)
    try:
        with _limited_address_space(limits.memory_bytes):
            return load(io.BufferedReader(bounded, _BUFFER_BYTES))
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


class _NoReferences:
    """Rejects all references in a pickle."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Reject every class and function."""
        raise InvalidTrace(f"{ACCEPTED}; got {f'{module}.{name}'[:200]}, which is not run")

    def persistent_load(self, _identifier: object) -> NoReturn:
        """Reject references to objects outside the pickle, such as storages of torch.save."""
        raise InvalidTrace("must contain its data; got a reference to an object outside the pickle (of torch.save?)")


class _Unpickler(_NoReferences, pickle.Unpickler):
    """Of opcodes that have been scanned."""


class PlainUnpickler(_NoReferences, pickle._Unpickler):
    """Accepts the opcodes of builtin containers and scalars. Keys are short strings, and a few integers of 64 bits."""

    dispatch: ClassVar[dict[int, Any]] = {
        opcode[0]: pickle._Unpickler.dispatch[opcode[0]]
        for opcode in (
            pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
            pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.BINFLOAT, pickle.SHORT_BINUNICODE, pickle.BINUNICODE,
            pickle.BINUNICODE8, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2,
            pickle.TUPLE3, pickle.EMPTY_DICT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET,
            pickle.LONG_BINGET, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINPERSID,
        )
    }  # fmt: skip

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._integer_keys = 0

    def load(self) -> Any:
        """The value. Raises InvalidTrace for what is not accepted, and what a damaged pickle raises."""
        try:
            return super().load()
        except KeyError as error:
            name = OPCODE_NAMES.get(error.args[0])
            if name is None:
                raise pickle.UnpicklingError(f"invalid opcode {error.args[0]!r}") from error
            raise InvalidTrace(f"{ACCEPTED}; got the opcode {name}") from None

    def _load_long1(self) -> None:
        size = self.read(1)[0]  # type: ignore[attr-defined]
        if size > _MAX_INTEGER_BYTES:
            raise InvalidTrace(f"must have integers of at most {_MAX_INTEGER_BYTES} bytes; got {size}")
        self.append(pickle.decode_long(self.read(size)))  # type: ignore[attr-defined]

    def _load_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._set(items[::2], items[1::2])

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._set([key], [value])

    def _set(self, keys: Sequence[object], values: Sequence[object]) -> None:
        found = self.stack[-1]  # type: ignore[attr-defined]
        if type(found) is not dict or len(keys) != len(values):
            raise pickle.UnpicklingError("items must be pairs, of a dict")
        for key, value in zip(keys, values, strict=True):
            if type(key) is int and -_MAX_KEY <= key <= _MAX_KEY and self._integer_keys < _MAX_INTEGER_KEYS:
                self._integer_keys += 1
            elif type(key) is not str or len(key) > _MAX_KEY_LENGTH:
                raise InvalidTrace(f"must have keys that are short strings, or few integers; got {type(key).__name__}")
            found[key] = value

    def _append(self) -> None:
        self._extend([self.stack.pop()])  # type: ignore[attr-defined]

    def _append_all(self) -> None:
        self._extend(self.pop_mark())  # type: ignore[attr-defined]

    def _extend(self, items: Sequence[object]) -> None:
        found = self.stack[-1]  # type: ignore[attr-defined]
        if type(found) is not list:
            raise pickle.UnpicklingError("items must be of a list")
        found.extend(items)

    dispatch[pickle.LONG1[0]] = _load_long1
    dispatch[pickle.SETITEM[0]] = _load_item
    dispatch[pickle.SETITEMS[0]] = _load_items
    dispatch[pickle.APPEND[0]] = _append
    dispatch[pickle.APPENDS[0]] = _append_all


class _Bounded(io.RawIOBase):
    """A stream that raises InvalidTrace after `limit` bytes, and knows whether it has been read to its end."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self.position = 0
        self.at_end = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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
