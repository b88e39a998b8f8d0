"""Checks a stream of a memory snapshot's pickle before Python's unpickler gets it.

The unpickler hashes the keys of a dict before they can be refused, and the hash of a tuple of tuples may take
2^60 steps, of an integer of a megabyte a megabyte each time. So only opcodes pass of which none is expensive: dicts,
lists, strings and numbers of a bounded length, and pairs of such integers. Nothing else can be stored in the memo of a
pickle and used again. The time to read is then linear in the size, except for keys that are integers and collide: those
are left to a limit of CPU time.

The unpickler must begin each opcode where the scan does. It would not after a large frame in whose last opcode the
frame ends: it drops what is left of the frame. So it gets frames of length 0, which change nothing.

All opcodes but those of strings have a fixed length, so a regular expression passes over thousands of them at once.
"""

from __future__ import annotations

import io
import pickletools
import re
from typing import IO, Any, Final

from muster.errors import InvalidTrace

MAX_TEXT: Final = 1 << 16
"""Bytes of a string."""
ACCEPTED: Final = "must contain dicts, lists, tuples, strings and numbers only"
OPCODE_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CHUNK: Final = 1 << 20
_LOOKAHEAD: Final = 32
"""No token but a string is longer."""
_STORE: Final = rb"(?:\x94|q.|r.{4})"
_SHORT_LONG: Final = rb"\x8a(?:%s)" % b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(10))
_INTEGER: Final = rb"(?:K.|M..|J.{4}|%s)" % _SHORT_LONG
_TOKENS: Final = (
    rb"h.|[(aesuN\x88\x89]|j.{4}"  # references, items, None, booleans
    rb"|[\]}]%s?|%s%s\x86%s?"
    % (_STORE, _INTEGER, _INTEGER, _STORE)  # lists, dicts, pairs of integers
    + rb"|%s(?=.{23})" % _INTEGER  # not the first integer of a pair whose rest has not been read
    + rb"|G.{8}"  # floats
)
_RUN: Final = re.compile(rb"(?:%s){1,4000}" % _TOKENS, re.DOTALL)
_LAST_RUN: Final = re.compile(rb"(?:%s|%s){1,4000}" % (_TOKENS, _INTEGER), re.DOTALL)
_SIZE_BYTES: Final = {b"\x8c": 1, b"X": 4, b"\x8d": 8}
"""Opcodes of strings, and the length of their size."""
_FRAME: Final = b"\x95"
_FRAME_BYTES: Final = 8  # of its length
_ENDS: Final = frozenset({b".", b"c", b"i", b"\x93", b"P", b"Q"})
"""The last opcode, and those at which the unpickler raises an error: references to classes and to other objects."""
_TEXT_STORE: Final = re.compile(_STORE, re.DOTALL)
_PROTOCOLS: Final = range(2, 6)


class ScannedPickle(io.RawIOBase):
    """The bytes of a pickle, as far as they are accepted. Reading raises InvalidTrace at the first that is not."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._read = bytearray()
        self._scanned = 0
        self._given = 0
        self._has_begun = False
        self._is_at_end = False
        self._has_stopped = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._given == self._scanned and not (self._is_at_end and self._scanned == len(self._read)):
            self._advance()
        content = self._read[self._given : min(self._scanned, self._given + len(buffer))]
        buffer[: len(content)] = content
        self._given += len(content)
        return len(content)

    def _advance(self) -> None:
        """Read and scan more. At the end of the stream what is incomplete passes too: the unpickler says so."""
        more = self._stream.read(_CHUNK)
        self._is_at_end = not more
        self._read = self._read[self._given :] + more
        self._scanned -= self._given
        self._given = 0
        if not self._has_begun and len(self._read) >= 2:
            if self._read[0] != 0x80 or self._read[1] not in _PROTOCOLS:
                raise InvalidTrace("must be a pickle of protocol 2 to 5")
            self._scanned, self._has_begun = 2, True
        while self._has_begun and not self._has_stopped and self._step():
            pass
        if self._has_stopped or self._is_at_end:
            self._scanned = len(self._read)

    def _step(self) -> bool:
        """Scan some opcodes; False if that needs more of the stream."""
        found = (_LAST_RUN if self._is_at_end else _RUN).match(self._read, self._scanned)
        if found is not None:
            self._scanned = found.end()
            return True
        opcode = bytes(self._read[self._scanned : self._scanned + 1])
        if opcode == _FRAME and len(self._read) > self._scanned + _FRAME_BYTES:
            end = self._scanned + 1 + _FRAME_BYTES
            self._read[self._scanned + 1 : end] = bytes(_FRAME_BYTES)
            self._scanned = end
            return True
        if opcode in _SIZE_BYTES:
            return self._skip_text(_SIZE_BYTES[opcode])
        known = OPCODE_NAMES.get(opcode[0]) if opcode else None
        if opcode and (opcode in _ENDS or known is None):
            self._has_stopped = True
            return False
        if known is None or len(self._read) - self._scanned < _LOOKAHEAD:
            return False  # at the end of the stream, so few bytes are cheap whatever they are
        raise InvalidTrace(f"{ACCEPTED}, and tuples of two integers only; got the opcode {known}")

    def _skip_text(self, size_bytes: int) -> bool:
        begin = self._scanned + 1 + size_bytes
        size = int.from_bytes(self._read[self._scanned + 1 : begin], "little")
        if len(self._read) >= begin and size > MAX_TEXT:
            raise InvalidTrace(f"must have strings of at most {MAX_TEXT} bytes; got {size}")
        if len(self._read) < begin + size + (0 if self._is_at_end else _LOOKAHEAD):
            return False
        self._scanned = begin + size
        if stored := _TEXT_STORE.match(self._read, self._scanned):
            self._scanned = stored.end()
        return True
