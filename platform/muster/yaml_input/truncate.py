"""Truncation of JSON that is nested too deep for a decoder.

Decoders are recursive, also for values that they skip: one deep field that nothing reads makes a list of a thousand
objects fail. Such a text is truncated without recursion and decoded again. The rest is still deeper than `muster.spec`
accepts, so a truncated object is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from muster.spec.depth import MAX_DEPTH

MAX_LEVELS = 2 * MAX_DEPTH
T = TypeVar("T")


def decode_truncated(decode: Callable[[bytes], T], text: bytes) -> T:
    """`decode(text)`, or `decode` of the truncated text if it is nested too deep. Raises as `decode` does."""
    try:
        return decode(text)
    except RecursionError:
        pass  # retry outside of the handler, which keeps the frames of the recursion alive
    return decode(truncate_depth(text))


def truncate_value(value: Any, levels: int = MAX_LEVELS) -> Any:
    """As `truncate_depth`, for a decoded value: some decoders accept more levels than encoders."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return 0
    if isinstance(value, dict):
        return {key: truncate_value(inner, levels - 1) for key, inner in value.items()}
    return [truncate_value(inner, levels - 1) for inner in value]


def truncate_depth(text: bytes, levels: int = MAX_LEVELS, chunk_bytes: int = 1 << 20) -> bytes:
    """JSON text with 0 in place of every list and object more than `levels` deep. Linear time, and little memory in
    addition to the text; undefined for text that is not JSON."""
    pieces: list[bytes] = []
    whole, inside, depth = True, False, 0  # of a string, and how deep, where the next piece begins
    for piece in _chunks(text, chunk_bytes):
        # Backslashes stand in strings only. Without pairs of them, and escaped quotes, each quote begins or ends one.
        plain = np.frombuffer(piece.replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
        outside = np.logical_xor.accumulate(plain == ord('"')) == inside
        opens = outside & ((plain == ord("{")) | (plain == ord("[")))
        closes = outside & ((plain == ord("}")) | (plain == ord("]")))
        depths = depth + np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
        kept = depths <= levels
        if not kept.all() or depth > levels:
            out = np.frombuffer(piece, np.uint8).copy()
            out[closes & (depths == levels)] = ord("0")  # the end of each removed value
            piece, whole = out[kept].tobytes(), False
        pieces.append(piece)
        inside, depth = not outside[-1], int(depths[-1])
    return text if whole else b"".join(pieces)


def _chunks(text: bytes, max_bytes: int) -> Iterator[bytes]:
    """The text in pieces; no piece ends between a backslash and the character that it escapes."""
    begin = 0
    while begin < len(text):
        end = begin + max_bytes
        while end < len(text) and text[end - 1] == ord("\\"):
            end += 1
        yield text[begin:end]
        begin = end
