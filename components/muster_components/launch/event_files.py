"""Reads scalars from the files of TensorBoard (`events.out.tfevents.*`) and of W&B's offline runs (`*.wandb`) while a
program writes them.

The libraries' own readers take more memory and time to import than a launcher has. Both formats are records of
protocol buffers. Lengths are checked and bounded, records that are too long or damaged are skipped, and of other
fields than those of scalars nothing is decoded.
"""

from __future__ import annotations

import json
import math
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_READ_BYTES: Final = 1 << 20
"""At a time; what is left is read the next time."""
MAX_RECORD_BYTES: Final = 1 << 18
"""Longer ones are images, histograms or graphs."""
_MAX_TAG_BYTES = 200
_TF_HEADER, _TF_FOOTER = 12, 4
# W&B uses the format of LevelDB's log, after a header of its own.
_WANDB_MAGIC, _WANDB_HEADER, _BLOCK, _BLOCK_HEADER = b":W&B", 7, 32_768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Scalar:
    """A finite value of a tag; `step` as the program counts it."""

    tag: str
    step: int
    value: float


class EventFile:
    """The scalars that are added to a file, of the format that its name has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_wandb = path.suffix == ".wandb"
        self._position = 0
        self._part = bytearray()  # of a record of W&B whose end is in a later block

    def read(self) -> list[Scalar]:
        """Those since the last call; empty also if the file cannot be read or is of another format."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size <= self._position:
                return []
            content = os.pread(handle, MAX_READ_BYTES, self._position)
            records = self._wandb_records(content) if self._is_wandb else self._tf_records(content, status.st_size)
            parse = _wandb_scalars if self._is_wandb else _tf_scalars
            return [scalar for record in records for scalar in _valid(parse, record)]
        except OSError:
            return []
        finally:
            os.close(handle)

    def _tf_records(self, content: bytes, size: int) -> Iterator[bytes]:
        """Complete records; each has its length before it, and checksums that are not computed."""
        begin = self._position
        while True:
            at = self._position - begin
            if at + _TF_HEADER > len(content):
                return
            (length,) = struct.unpack_from("<Q", content, at)
            end = at + _TF_HEADER + length + _TF_FOOTER
            if begin + end > size:  # not written yet, or damaged: then nothing more is read
                return
            if end > len(content) and length <= MAX_RECORD_BYTES:
                return  # the next time
            self._position = begin + end
            if length <= MAX_RECORD_BYTES:
                yield content[at + _TF_HEADER : end - _TF_FOOTER]

    def _wandb_records(self, content: bytes) -> Iterator[bytes]:
        """Complete records, which may go over several blocks."""
        begin = self._position
        if begin == 0:
            if len(content) < _WANDB_HEADER or not content.startswith(_WANDB_MAGIC):
                return
            self._position = _WANDB_HEADER
        while True:
            left = _BLOCK - self._position % _BLOCK
            if left < _BLOCK_HEADER:  # zeros
                self._position += left
                continue
            at = self._position - begin
            if at + _BLOCK_HEADER > len(content):
                return
            length, kind = struct.unpack_from("<HB", content, at + 4)
            end = at + _BLOCK_HEADER + length
            if end > len(content):
                return
            if length + _BLOCK_HEADER > left or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):  # damaged
                self._position += left
                self._part.clear()
                continue
            self._position = begin + end
            if kind in (_FULL, _FIRST):
                self._part.clear()
            if len(self._part) <= MAX_RECORD_BYTES:
                self._part += content[at + _BLOCK_HEADER : end]
            if kind in (_FULL, _LAST):
                if len(self._part) <= MAX_RECORD_BYTES:
                    yield bytes(self._part)
                self._part.clear()


def _valid(parse: Callable[[bytes], Iterator[Scalar]], record: bytes) -> list[Scalar]:
    """The finite scalars of a record; none of a damaged one."""
    try:
        return [one for one in parse(record) if math.isfinite(one.value) and 0 <= one.step < 1 << 53]
    except (ValueError, struct.error, RecursionError):
        return []


def _tf_scalars(record: bytes) -> Iterator[Scalar]:
    """Those of an `Event`."""
    step, summaries = 0, list[bytes]()
    for number, value in _fields(record):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, entry in _fields(summary):
            if number == 1 and isinstance(entry, bytes):
                fields = dict(_fields(entry))
                tag, number_value = _text(fields.get(1)), _tf_value(fields)
                if tag and number_value is not None:
                    yield Scalar(tag, step, number_value)


def _tf_value(fields: Mapping[int, int | bytes]) -> float | None:
    """`simple_value`, or a tensor of one float or double."""
    simple, tensor = fields.get(2), fields.get(8)
    if isinstance(simple, bytes):
        return float(struct.unpack("<f", simple)[0])
    if isinstance(tensor, bytes):
        parts = dict(_fields(tensor))
        formats = {1: ("<f", 5), 2: ("<d", 6)}
        layout, listed = formats.get(int(parts.get(1, 0)), ("", 0))  # by type of the elements
        for content in (parts.get(4), parts.get(listed)):
            if layout and isinstance(content, bytes) and len(content) == struct.calcsize(layout):
                return float(struct.unpack(layout, content)[0])
    return None


def _wandb_scalars(record: bytes) -> Iterator[Scalar]:
    """Those of a `Record` with a line of the history."""
    for number, history in _fields(record):
        if number != 2 or not isinstance(history, bytes):
            continue
        values: dict[str, float] = {}
        for part, item in _fields(history):
            if part == 1 and isinstance(item, bytes):
                keys, value = list[str](), None
                for field, content in _fields(item):
                    if field in (1, 2):
                        keys.append(_text(content))
                    else:
                        value = _wandb_value(field, content)
                if value is not None and all(keys):
                    values["/".join(keys)] = value
        step = int(values.pop("_step", 0))
        yield from (Scalar(tag, step, value) for tag, value in values.items())


def _wandb_value(field: int, content: int | bytes) -> float | None:
    if field == 6 and isinstance(content, bytes):
        return float(struct.unpack("<d", content)[0])
    if field == 5 and isinstance(content, int):
        return float(content >> 1 ^ -(content & 1))  # zigzag
    if field == 16 and isinstance(content, bytes):
        value = json.loads(content) if len(content) <= 32 else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


def _text(value: int | bytes | None) -> str:
    """A tag; empty if it is too long or no text."""
    if not isinstance(value, bytes) or len(value) > _MAX_TAG_BYTES:
        return ""
    text = value.decode("utf-8", "replace")
    return text if text.isprintable() else ""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of the fields of a message in the wire format of protocol buffers: a number for varints, else
    the bytes. Raises ValueError for another format."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if at + length > len(message):
            raise ValueError("a field goes beyond its message")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number does not end")
