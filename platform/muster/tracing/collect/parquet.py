"""Writes small tables as Parquet files with Python's standard library: the collector runs beside training, and pyarrow
alone would double its memory.

One row group of required columns in plain encoding, compressed with gzip (https://parquet.apache.org/docs/file-format/).
The metadata is Thrift's compact protocol
(https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md); field numbers and enums are those
of `parquet.thrift`.
"""

from __future__ import annotations

import gzip
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

MAGIC: Final = b"PAR1"
CREATED_BY: Final = "muster"
_INT64, _DOUBLE, _BYTE_ARRAY = 2, 5, 6  # Type
_REQUIRED, _UTF8, _PLAIN, _RLE, _GZIP, _DATA_PAGE = 0, 0, 0, 3, 2, 0

Column: TypeAlias = Sequence[str] | Sequence[int] | Sequence[float]
_Thrift: TypeAlias = "int | _Long | str | list[_Thrift] | dict[int, _Thrift]"


class _Long(int):
    """An i64 of Thrift; a plain int is an i32."""


def write_parquet(columns: Mapping[str, tuple[type[str | int | float], Column]]) -> bytes:
    """The file with these columns of equal length, by name: their type (str, int of 64 bits, float) and values."""
    rows = max((len(values) for _, values in columns.values()), default=0)
    out = bytearray(MAGIC)
    schema: list[_Thrift] = [{4: "schema", 5: len(columns)}]
    chunks: list[_Thrift] = []
    total = 0
    for name, (kind, values) in columns.items():
        code, plain = _encode(kind, values)
        schema.append({1: code, 3: _REQUIRED, 4: name, **({6: _UTF8} if kind is str else {})})
        packed = gzip.compress(plain, mtime=0)
        header = _struct({1: _DATA_PAGE, 2: len(plain), 3: len(packed), 5: {1: rows, 2: _PLAIN, 3: _RLE, 4: _RLE}})
        sizes = {6: _Long(len(header) + len(plain)), 7: _Long(len(header) + len(packed))}
        meta: dict[int, _Thrift] = {1: code, 2: [_PLAIN], 3: [name], 4: _GZIP, 5: _Long(rows), **sizes}
        chunks.append({2: _Long(len(out)), 3: {**meta, 9: _Long(len(out))}})
        out += header + packed
        total += len(header) + len(plain)
    groups: list[_Thrift] = [{1: chunks, 2: _Long(total), 3: _Long(rows)}] if rows else []
    footer = _struct({1: 1, 2: schema, 3: _Long(rows), 4: groups, 6: CREATED_BY})
    return bytes(out + footer + struct.pack("<I", len(footer)) + MAGIC)


def _encode(kind: type[str | int | float], values: Column) -> tuple[int, bytes]:
    """The physical type, and the values in plain encoding."""
    if kind is str:
        texts = [str(value).encode() for value in values]
        return _BYTE_ARRAY, b"".join(struct.pack("<I", len(text)) + text for text in texts)
    numbers = array("q" if kind is int else "d", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return (_INT64 if kind is int else _DOUBLE), numbers.tobytes()


def _struct(fields: Mapping[int, _Thrift]) -> bytes:
    out, last = bytearray(), 0
    for number, value in fields.items():  # in ascending order, less than 16 apart
        out.append((number - last) << 4 | _type_code(value))
        out += _value(value)
        last = number
    return bytes(out) + b"\0"


def _type_code(value: _Thrift) -> int:
    codes = {_Long: 6, int: 5, str: 8, list: 9, dict: 12}
    return codes[type(value)]


def _value(value: _Thrift) -> bytes:
    if isinstance(value, int):
        return _varint(value << 1 if value >= 0 else -value * 2 - 1)
    if isinstance(value, str):
        return _varint(len(value.encode())) + value.encode()
    if isinstance(value, dict):
        return _struct(value)
    element = _type_code(value[0]) if value else 12
    head = bytes([len(value) << 4 | element]) if len(value) < 15 else bytes([0xF0 | element]) + _varint(len(value))
    return head + b"".join(map(_value, value))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
