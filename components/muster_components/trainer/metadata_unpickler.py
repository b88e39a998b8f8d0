"""Unpickles torch's checkpoint metadata, without running code from it, in time linear in its size.

Three things in a pickle can take longer, and are refused. A key is hashed and compared: keys are strings, or a
`MetadataIndex` of a string and a short `torch.Size`. A value that was read once can be used again and again: strings
and sizes are short, and no error shows a value, whose text may fit into no memory. And a function can be called: those
of torch's metadata alone, with short arguments.
"""

from __future__ import annotations

import enum
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from typing import IO, Any, ClassVar, Final

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from muster_components.trainer.checkpoint_manifest import METADATA

_MAX_TEXT, _MAX_DIMENSIONS, _MAX_PARTS, _MAX_INTEGER_BYTES = 4096, 64, 256, 9
_MAX_EQUAL_HASHES: Final = 16
"""Keys with the same hash, each of which is compared with the others. Sizes can be chosen to have one."""
_OPCODES: Final = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT,
    pickle.BININT1, pickle.BININT2, pickle.BINFLOAT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.TUPLE,
    pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3, pickle.EMPTY_DICT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE,
    pickle.BINGET, pickle.LONG_BINGET, pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.BINUNICODE, pickle.SHORT_BINUNICODE,
)  # fmt: skip


class MetadataUnpickler(pickle._Unpickler):
    """Rejects any class or function but torch's metadata classes, and to set attributes other than fields of their
    instances: attributes of a class would remain changed in this process. The C unpickler has no hooks for this."""

    dispatch: ClassVar[dict[int, Any]] = {opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in _OPCODES}

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self._hashes: Counter[int] = Counter()

    def load(self) -> Any:
        """The value. Raises UnpicklingError for what is not accepted, and what a damaged pickle raises."""
        try:
            return super().load()
        except KeyError as error:
            raise pickle.UnpicklingError(f"{METADATA} must contain checkpoint metadata only; got {error}") from error

    def find_class(self, module: str, name: str) -> Any:
        """One of the metadata's classes and functions."""
        found = _METADATA_TYPES.get((module, name))
        if found is None and module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            found = getattr(torch, name)
        if found is None:
            what = f"{module}.{name}"[:200]
            raise pickle.UnpicklingError(f"{METADATA} must contain checkpoint metadata only; got {what}")
        return found

    def _load_text(self, size_bytes: int) -> None:
        size = int.from_bytes(self.read(size_bytes), "little")  # type: ignore[attr-defined]
        if size > _MAX_TEXT:
            raise pickle.UnpicklingError(f"{METADATA} must have strings of at most {_MAX_TEXT} bytes; got {size}")
        self.stack.append(str(self.read(size), "utf-8", "surrogatepass"))  # type: ignore[attr-defined]

    def _load_long1(self) -> None:
        size = self.read(1)[0]  # type: ignore[attr-defined]
        if size > _MAX_INTEGER_BYTES:
            raise pickle.UnpicklingError(f"{METADATA} must have integers of 64 bits; got {size} bytes")
        self.stack.append(pickle.decode_long(self.read(size)))  # type: ignore[attr-defined]

    def _load_build(self) -> None:
        instance, state = self.stack[-2:]  # type: ignore[attr-defined]
        of = type(instance)
        by_name = isinstance(state, dict) and state.keys() <= _FIELDS.get(of, frozenset())
        if of not in _FIELDS or not (by_name or hasattr(of, "__setstate__")):
            raise pickle.UnpicklingError(f"{METADATA} must set fields of metadata only; got a state of a {of.__name__}")
        super().load_build()  # type: ignore[misc]

    def _load_new(self) -> None:
        arguments, of = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        if not _is_metadata_class(of) or type(arguments) is not tuple or arguments:
            raise pickle.UnpicklingError(f"{METADATA} must create metadata only; got {_shown(of)}")
        self.stack.append(of.__new__(of))  # type: ignore[attr-defined]

    def _load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        if not isinstance(arguments, tuple) or not _may_call(function, arguments):
            raise pickle.UnpicklingError(
                f"{METADATA} must create metadata with short arguments; got {_shown(function)}"
            )
        self.stack.append(function(*arguments))  # type: ignore[attr-defined]

    def _load_items(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self._set(items[::2], items[1::2])

    def _load_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._set([key], [value])

    def _set(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        found = self.stack[-1]  # type: ignore[attr-defined]
        if type(found) is not dict or len(keys) != len(values):
            raise pickle.UnpicklingError(f"{METADATA} must have items of dicts, in pairs")
        for key, value in zip(keys, values, strict=True):
            if type(key) is not str and not self._is_plain_index(key):
                what = f"strings and indices of tensors; got {type(key).__name__}"
                raise pickle.UnpicklingError(f"{METADATA} must have keys that are {what}")
            found[key] = value

    def _is_plain_index(self, key: Any) -> bool:
        if type(key) is not dcp.MetadataIndex or type(key.__dict__.get("fqn")) is not str:
            return False
        if type(key.offset) not in (torch.Size, type(None)) or type(key.index) not in (int, type(None)):
            return False
        number = hash(key)
        self._hashes[number] += 1
        return self._hashes[number] <= _MAX_EQUAL_HASHES

    def _load_append(self) -> None:
        self._extend([self.stack.pop()])  # type: ignore[attr-defined]

    def _load_appends(self) -> None:
        self._extend(self.pop_mark())  # type: ignore[attr-defined]

    def _extend(self, items: Sequence[Any]) -> None:
        found = self.stack[-1]  # type: ignore[attr-defined]
        if type(found) is not list:
            raise pickle.UnpicklingError(f"{METADATA} must have items of lists")
        found.extend(items)

    dispatch[pickle.SHORT_BINUNICODE[0]] = lambda self: self._load_text(1)
    dispatch[pickle.BINUNICODE[0]] = lambda self: self._load_text(4)
    dispatch[pickle.LONG1[0]] = _load_long1
    dispatch[pickle.BUILD[0]] = _load_build
    dispatch[pickle.NEWOBJ[0]] = _load_new
    dispatch[pickle.REDUCE[0]] = _load_reduce
    dispatch[pickle.SETITEM[0]] = _load_item
    dispatch[pickle.SETITEMS[0]] = _load_items
    dispatch[pickle.APPEND[0]] = _load_append
    dispatch[pickle.APPENDS[0]] = _load_appends


def _may_call(function: object, arguments: tuple[Any, ...]) -> bool:
    """Whether this is one of the metadata's functions, with arguments that take little time."""
    if function is torch.Size:
        sizes = arguments[0] if len(arguments) == 1 else None
        return isinstance(sizes, tuple) and len(sizes) <= _MAX_DIMENSIONS and all(type(size) is int for size in sizes)
    if function is _path:
        return len(arguments) <= _MAX_PARTS and all(type(part) is str for part in arguments)
    if function is dcp._MEM_FORMAT_ENCODING:  # an enum hashes and shows what it does not know
        return len(arguments) == 1 and type(arguments[0]) is int
    return (function is _layout and len(arguments) == 1) or (function is _memory_format and len(arguments) == 2)


def _is_metadata_class(of: object) -> bool:
    return isinstance(of, type) and of in _FIELDS  # only the hash of a class is cheap


def _shown(value: object) -> str:
    """A value in an error; the text of a container may fit into no memory."""
    return repr(value)[:200] if isinstance(value, type | str | enum.Enum) else f"a {type(value).__name__}"


def _path(*_parts: str) -> PurePosixPath:
    """Any path: to split a long one at its slashes, again and again, takes longer than to read the pickle."""
    return _UNUSED_PATH


def _layout(name: object) -> torch.layout:
    found = getattr(torch, name.removeprefix("torch."), None) if type(name) is str else None
    if not isinstance(found, torch.layout):
        raise pickle.UnpicklingError(f"{METADATA} must contain layouts of tensors; got {_shown(name)}")
    return found


def _memory_format(of: object, name: object) -> dcp._MEM_FORMAT_ENCODING:
    """A member as `getattr`, which Python 3.11.0 to 3.11.3 write for members of enums."""
    known = dcp._MEM_FORMAT_ENCODING.__members__
    if of is not dcp._MEM_FORMAT_ENCODING or type(name) is not str or name not in known:
        raise pickle.UnpicklingError(
            f"{METADATA} must get members of its enum only; got {_shown(name)} of {_shown(of)}"
        )
    return known[name]


_UNUSED_PATH: Final = PurePosixPath()
_METADATA_CLASSES: Final = (
    dcp.Metadata,
    dcp.MetadataIndex,
    dcp.StorageMeta,
    dcp.TensorStorageMetadata,
    dcp.BytesStorageMetadata,
    dcp.ChunkStorageMetadata,
    dcp.TensorProperties,
    _StorageInfo,
)
_FIELDS: Final[dict[Any, frozenset[str]]] = {
    of: frozenset(field.name for field in fields(of)) for of in _METADATA_CLASSES
}
_METADATA_TYPES: Final[dict[tuple[str, str], Any]] = {
    **{(of.__module__, of.__qualname__): of for of in (*_METADATA_CLASSES, dcp._MEM_FORMAT_ENCODING)},
    ("torch", "Size"): torch.Size,
    ("builtins", "getattr"): _memory_format,
    ("torch.serialization", "_get_layout"): _layout,
    # The path it was written to, which is not used.
    ("pathlib", "PosixPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
}
