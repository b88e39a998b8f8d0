"""Read a Chrome/Kineto trace of any size in little memory.

A trace is one JSON document, often hundreds of megabytes, of which everything that matters is one long array. Decoding
it whole costs ten times its size. So the text is cut into blocks, and each block is decoded by itself: the cut is made
where a `}, {` stands, which may be a false one (inside a string, inside nested arguments), but a false cut leaves
brackets or quotes open and so cannot decode; the next candidate is tried then. Damage is thereby also found where it
is, not at "line 1", and a truncated file is known as truncated.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from muster.errors import InvalidTrace

BLOCK_BYTES = 4 << 20
# No honest stretch between two events is longer: past this a block that does not decode is damaged.
MOST_BYTES_PER_CUT = 64 << 20
CUT = re.compile(rb"\}\s*(?=,\s*\{)")
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
GZIP_MAGIC = b"\x1f\x8b"
NOT_A_TRACE = "NotATrace"


class Arguments(msgspec.Struct, gc=False):
    """The arguments we read; the many others are skipped without being built."""

    stream: Any = None
    correlation: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    name: Any = None


class RawEvent(msgspec.Struct, gc=False):
    """One trace event as it stands in the file; times in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: Arguments | None = None


class Header(msgspec.Struct):
    """What stands beside the events."""

    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None
    host_name: Any = None
    muster: Any = None  # whose trace it is, where Muster's trainer wrote it


class _Document(Header):
    traceEvents: list[RawEvent] | None = None


_events = msgspec.json.Decoder(list[RawEvent])
_document = msgspec.json.Decoder(_Document)

Take = Callable[[list[RawEvent]], None]


def scan(path: Path, take: Take, *, block_bytes: int = BLOCK_BYTES) -> Header:
    """Give every event of the file to `take`, block by block; plain and gzip files alike.

    Raises InvalidTrace, naming the file and the byte (of the uncompressed text), for a truncated or damaged one;
    with reason NotATrace for well-formed JSON without events.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            source = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            return _Scan(path, source, take, block_bytes).run()
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise InvalidTrace(f"{path}: damaged gzip data: {error}") from error
        raise


class _Scan:
    """One pass over one file: `buffer` is text not yet decoded, `base` the file offset at which it begins."""

    def __init__(self, path: Path, source: IO[bytes], take: Take, block_bytes: int) -> None:
        self.path, self.source, self.take, self.block_bytes = path, source, take, block_bytes
        self.buffer, self.base, self.done = b"", 0, False

    def run(self) -> Header:
        self._read()
        if not self.buffer:
            raise InvalidTrace(f"{self.path}: is empty (0 bytes)")
        head, closing = self._enter()
        need = self.block_bytes
        while True:
            while len(self.buffer) < need and not self.done:
                self._read()
            if self.done:
                return _merge(head, self._finish(closing))
            if self._take_block():
                need = self.block_bytes
            elif need < MOST_BYTES_PER_CUT:
                # Either no event ends in this block, or the array does: more text tells.
                need = 2 * len(self.buffer)
            else:
                self._fail(self.buffer, b"", "")

    def _read(self) -> None:
        try:
            block = self.source.read(self.block_bytes)
        except (EOFError, zlib.error) as error:
            at = self.base + len(self.buffer)
            raise InvalidTrace(f"{self.path}: truncated or damaged gzip data after byte {at}: {error}") from error
        self.buffer += block
        self.done = not block

    def _enter(self) -> tuple[Header, bytes]:
        """Step past what stands before the first event; return it, and what is missing in front of the rest."""
        while True:
            if self.buffer.lstrip()[:1] == b"[":
                self._drop(self.buffer.index(b"[") + 1)
                return Header(), b"["
            for match in EVENTS_KEY.finditer(self.buffer):
                head = self.buffer[: match.end()]
                try:
                    header = _document.decode(head + b"[]}")
                except msgspec.MsgspecError:
                    continue  # the key stands inside a string or a nested object
                self._drop(match.end() + 1)
                return header, b'{"traceEvents":['
            if self.done or len(self.buffer) > MOST_BYTES_PER_CUT:
                self._refuse_headless()
            self._read()

    def _refuse_headless(self) -> None:
        try:
            msgspec.json.decode(self.buffer)
        except msgspec.MsgspecError as error:
            self._fail(self.buffer, b"", str(error))
        raise InvalidTrace(f"{self.path}: is JSON without traceEvents, so not a trace", reason=NOT_A_TRACE)

    def _take_block(self) -> bool:
        """Decode up to the last event that ends in the buffer; False if none of the last candidates is a real end."""
        tail = max(0, len(self.buffer) - (256 << 10))
        cuts = [m.start() + 1 for m in CUT.finditer(self.buffer, tail)][-4:]
        for cut in reversed(cuts):
            events = _decode_events(b"[" + self.buffer[:cut] + b"]")
            if events is not None:
                self.take(events)
                self._drop(self.buffer.index(b",", cut) + 1)
                return True
        return False

    def _finish(self, closing: bytes) -> Header:
        """Decode the last events together with what stands behind them."""
        text = closing + self.buffer
        try:
            if closing == b"[":
                self.take(_events.decode(text))
                return Header()
            document = _document.decode(text)
            self.take(document.traceEvents or [])
            return document
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            loose = _decode_loosely(text)
            if loose is None:
                self._fail(text, closing, str(error))
        if isinstance(loose, dict):
            self.take(_loose_events(loose.get("traceEvents")))
            return Header(**{field: loose.get(field) for field in Header.__struct_fields__})
        self.take(_loose_events(loose))
        return Header()

    def _drop(self, count: int) -> None:
        self.buffer = self.buffer[count:]
        self.base += count

    def _fail(self, text: bytes, prefix: bytes, message: str) -> None:
        end = self.base + len(self.buffer)
        if not message:
            try:
                _events.decode(b"[" + text)
            except msgspec.MsgspecError as error:
                message, prefix = str(error), b"["
        found = re.search(r"\(byte (\d+)\)", message)
        if found is None:
            raise InvalidTrace(f"{self.path}: truncated: the text ends at byte {end} inside the trace")
        at = self.base + int(found.group(1)) - len(prefix)
        what = re.sub(r"\s*\(byte \d+\)", "", message)
        raise InvalidTrace(f"{self.path}: damaged at byte {at}: {what}")


def _merge(head: Header, tail: Header) -> Header:
    """Fields may stand before or behind the events, by the profiler's version."""
    return Header(**{field: _first(getattr(head, field), getattr(tail, field)) for field in Header.__struct_fields__})


def _first(a: Any, b: Any) -> Any:
    return b if a is None else a


def _decode_events(text: bytes) -> list[RawEvent] | None:
    """The events of one array; None if the text is no whole array."""
    try:
        return _events.decode(text)
    except msgspec.ValidationError:
        return _loose_events(_decode_loosely(text))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Broken JSON is usually just a false cut; NaN and stray control characters are worth a second look only when
        # they are there.
        if not _ODDITIES.search(text):
            return None
        loose = _decode_loosely(text)
        return None if loose is None else _loose_events(loose)


_ODDITIES = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x80-\xff]|:\s*-?(?:[nN]a[nN]|[iI]nf)")
_BARE_NUMBERS = re.compile(r":\s*-?(?:nan|inf)\b", re.IGNORECASE)


def _decode_loosely(text: bytes) -> Any:
    """JSON as some profilers write it: NaN and inf as numbers, raw control characters, bytes that are not UTF-8."""
    try:
        return json.loads(_BARE_NUMBERS.sub(": null", text.decode("utf-8", "replace")), strict=False)
    except ValueError:
        return None


def _loose_events(values: Any) -> list[RawEvent]:
    """Events whose fields have unexpected types: what can be converted is, the rest becomes an event without times."""
    return [_loose_event(v) for v in values] if isinstance(values, list) else []


def _loose_event(value: Any) -> RawEvent:
    try:
        return msgspec.convert(value, RawEvent, strict=False)
    except msgspec.ValidationError:
        return RawEvent(ph="unusable")


def blocks_of(path: Path) -> Iterator[list[RawEvent]]:
    """The blocks of a file as a list of lists; for small files and tests."""
    blocks: list[list[RawEvent]] = []
    scan(path, blocks.append)
    yield from blocks
