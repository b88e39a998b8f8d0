"""Streaming reader of Chrome/Kineto traces with bounded memory.

A trace is one JSON document, often of hundreds of megabytes, most of it one array of events. Decoding it at once takes
ten times its size in memory. So the text is cut into blocks at `}, {`, and each block is decoded separately. A cut may
be wrong (inside a string or nested arguments), but then brackets or quotes are unbalanced and decoding fails, and the
next candidate is tried. This also locates damage at its byte and detects truncated files.

The file is not trusted: time is linear in its size, memory is bounded by limits for the header and each event, and
values of unexpected types are not built.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.read.lenient_json import NONSTANDARD_JSON, decode_leniently
from muster.tracing.shared_folder import open_regular

BLOCK_BYTES = 1 << 20
# Maximum size of one event, and of the text before the first; a larger block that does not decode is damaged.
MAX_EVENT_BYTES = 16 << 20
_MAX_FIELD_BYTES = 1 << 20
EVENT_BOUNDARY = re.compile(rb"\}\s*(?=,\s*\{)")
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
GZIP_MAGIC = b"\x1f\x8b"
NOT_A_TRACE = "NotATrace"
TOO_LARGE = "TooLarge"
MAX_TEXT_BYTES = 4 << 30


# Microseconds; times (since 1970, until 2065) and durations (30 days) beyond are invalid. Nanoseconds fit into 64 bits.
MAX_TIME_US = 3e15
MAX_DURATION_US = 30 * 86_400e6

Scalar = int | float | str | None
_ABSENT = msgspec.Raw()


class EventArguments(msgspec.Struct, gc=False):
    """The arguments that the analysis uses; others are skipped without building them."""

    stream: Scalar = None
    correlation: Scalar = None
    collective: Scalar = msgspec.field(name="Collective name", default=None)
    name: Scalar = None
    group: Scalar = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    elements_in: Scalar = msgspec.field(name="In msg nelems", default=None)
    elements_out: Scalar = msgspec.field(name="Out msg nelems", default=None)
    dtype: Scalar = None
    peer: Any = msgspec.field(name="Rank", default=None)  # of a send or a receive
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_ABSENT)
    sizes: msgspec.Raw = msgspec.field(name="Input Dims", default=_ABSENT)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_ABSENT)
    allocated: Scalar = msgspec.field(name="Total Allocated", default=None)
    device_type: Scalar = msgspec.field(name="Device Type", default=None)
    grid: tuple[Scalar, ...] | Scalar = None
    block: tuple[Scalar, ...] | Scalar = None


class RawEvent(msgspec.Struct, gc=False):
    """One trace event as in the file; times in microseconds."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: Scalar = None
    tid: Scalar = None
    args: EventArguments | None = None


class TraceHeader(msgspec.Struct):
    """The fields of the document besides the events."""

    distributedInfo: Any = None
    deviceProperties: Any = None
    with_stack: Any = None
    muster: Any = None  # written by Muster's trainer: the job's name


class _Document(msgspec.Struct):
    """The header fields and the events. Fields are built by `header`, up to `_MAX_FIELD_BYTES`."""

    distributedInfo: msgspec.Raw = _ABSENT
    deviceProperties: msgspec.Raw = _ABSENT
    with_stack: msgspec.Raw = _ABSENT
    muster: msgspec.Raw = _ABSENT
    traceEvents: list[RawEvent] | None = None

    def header(self) -> TraceHeader:
        return TraceHeader(**{field: _decode_field(getattr(self, field)) for field in TraceHeader.__struct_fields__})


def _decode_field(field: msgspec.Raw) -> Any:
    return msgspec.json.decode(field) if 0 < len(bytes(field)) <= _MAX_FIELD_BYTES else None


@cache
def _events_decoder(event_type: type[RawEvent]) -> msgspec.json.Decoder[list[RawEvent]]:
    return msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]


@cache
def _document_decoder(event_type: type[RawEvent]) -> msgspec.json.Decoder[_Document]:
    fields = [("traceEvents", list[event_type] | None, None)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("_Document", fields, bases=(_Document,)))


_syntax_decoder = msgspec.json.Decoder(msgspec.Raw)

EventCallback = Callable[[list[RawEvent]], None]


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Limits for one trace: uncompressed bytes, and events kept in memory.

    The defaults are about fifteen times those of a trace of 280 MB of JSON with 870,000 events.
    """

    text_bytes: int = MAX_TEXT_BYTES
    events: int = 12_000_000


DEFAULT_LIMITS = TraceLimits()


def stream_events(
    path: Path,
    on_events: EventCallback,
    *,
    block_bytes: int = BLOCK_BYTES,
    max_bytes: int = MAX_TEXT_BYTES,
    event_type: type[RawEvent] = RawEvent,
) -> TraceHeader:
    """Call `on_events` with the events of the file, as `event_type`, block by block. The file may be gzipped.

    Raises InvalidTrace, with the file and the byte (of the uncompressed text), for a truncated or damaged file; with
    reason NotATrace for valid JSON without events, and TooLarge for more than `max_bytes` of uncompressed text.
    """
    with open_regular(path) as file:
        return stream_file(file, path, on_events, block_bytes=block_bytes, max_bytes=max_bytes, event_type=event_type)


def unpack(file: IO[bytes]) -> IO[bytes]:
    """The text of an open file, which may be gzipped, from its beginning."""
    file.seek(0)
    compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file


def locate_events(path: Path) -> int:
    """The offset in the uncompressed text at which the array of events begins, after its bracket."""
    with open_regular(path) as file:
        stream = _EventStream(path, unpack(file), lambda _: None, BLOCK_BYTES, MAX_TEXT_BYTES, RawEvent)
        stream.begin()
        return stream.offset


def stream_file(
    file: IO[bytes],
    path: Path,
    on_events: EventCallback,
    *,
    block_bytes: int = BLOCK_BYTES,
    max_bytes: int,
    event_type: type[RawEvent] = RawEvent,
) -> TraceHeader:
    """As `stream_events`, for an open file, from its beginning; `path` is used in messages."""
    try:
        return _EventStream(path, unpack(file), on_events, block_bytes, max_bytes, event_type).run()
    except RecursionError as error:
        raise InvalidTrace(f"{path}: damaged: nested too deeply") from error
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise InvalidTrace(f"{path}: damaged gzip data: {error}") from error
        raise


class _EventStream:
    """One pass over one file: `buffer` is text not yet decoded, `offset` its offset in the uncompressed text."""

    def __init__(
        self,
        path: Path,
        source: IO[bytes],
        on_events: EventCallback,
        block_bytes: int,
        max_bytes: int,
        event_type: type[RawEvent],
    ) -> None:
        self.max_bytes, self.event_type = max_bytes, event_type
        self.path, self.source, self.on_events, self.block_bytes = path, source, on_events, block_bytes
        self.buffer, self.offset, self.at_end = b"", 0, False

    def begin(self) -> tuple[TraceHeader, bytes]:
        """Consume the text before the first event, as `_read_header`."""
        self._read()
        if not self.buffer:
            raise InvalidTrace(f"{self.path}: is empty (0 bytes)")
        return self._read_header()

    def run(self) -> TraceHeader:
        head, closing = self.begin()
        need = self.block_bytes
        while True:
            while len(self.buffer) < need and not self.at_end:
                self._read()
            if self.at_end:
                return _merge_headers(head, self._decode_tail(closing))
            if self._decode_block():
                need = self.block_bytes
            elif len(self.buffer) < MAX_EVENT_BYTES:
                # Either no event ends in this block, or the array does: read more.
                need = min(2 * len(self.buffer), MAX_EVENT_BYTES)
            else:
                self._fail(self.buffer, b"", "")

    def _read(self) -> None:
        try:
            block = self.source.read(self.block_bytes)
        except (EOFError, zlib.error) as error:
            at = self.offset + len(self.buffer)
            raise InvalidTrace(f"{self.path}: truncated or damaged gzip data after byte {at}: {error}") from error
        self.buffer += block
        self.at_end = not block
        if self.offset + len(self.buffer) > self.max_bytes:
            raise InvalidTrace(
                f"{self.path}: must have at most {self.max_bytes} bytes uncompressed (--max-trace-bytes)",
                reason=TOO_LARGE,
            )

    def _read_header(self) -> tuple[TraceHeader, bytes]:
        """Consume the text before the first event. Returns the header fields in it, and the prefix that makes the
        remaining text a complete document."""
        # `depth` is the nesting depth at `passed`, a position outside of strings.
        passed, depth, need = 0, 0, self.block_bytes
        while True:
            while len(self.buffer) < need and not self.at_end:
                self._read()
            if self.buffer.lstrip()[:1] == b"[":
                self._consume(self.buffer.index(b"[") + 1)
                return TraceHeader(), b"["
            for match in EVENTS_KEY.finditer(self.buffer, passed):
                if self.buffer.endswith(b"\\", 0, match.start()):
                    continue  # an escaped quote: the end of another string
                depth += _depth_change(self.buffer[passed : match.start()])
                passed = match.start()
                if depth == 1:
                    return self._decode_header(match.end()), b'{"traceEvents":['
            if self.at_end or len(self.buffer) >= MAX_EVENT_BYTES:
                self._fail_without_events()
            need = min(2 * len(self.buffer), MAX_EVENT_BYTES)

    def _decode_header(self, end: int) -> TraceHeader:
        """The header fields before the events, which begin at `end`."""
        text = self.buffer[:end] + b"[]}"
        try:
            header = _document_decoder(self.event_type).decode(text).header()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            decoded = decode_leniently(text)
            if not isinstance(decoded, dict):
                self._fail(text, b"", str(error))
            header = _header_from(decoded)
        self._consume(end + 1)
        return header

    def _fail_without_events(self) -> NoReturn:
        if not self.at_end:
            raise InvalidTrace(f"{self.path}: no traceEvents in its first {MAX_EVENT_BYTES >> 20} MiB")
        try:
            _syntax_decoder.decode(self.buffer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail(self.buffer, b"", str(error))
        raise InvalidTrace(f"{self.path}: not a trace: JSON without traceEvents", reason=NOT_A_TRACE)

    def _decode_block(self) -> bool:
        """Decode up to the last event that ends in the buffer; False if none of the last four cuts can be decoded."""
        tail = max(0, len(self.buffer) - (256 << 10))
        cuts = [m.start() + 1 for m in EVENT_BOUNDARY.finditer(self.buffer, tail)][-4:]
        for cut in reversed(cuts):
            events = _decode_events(b"[" + self.buffer[:cut] + b"]", self.event_type)
            if events is not None:
                self.on_events(events)
                self._consume(self.buffer.index(b",", cut) + 1)
                return True
        return False

    def _decode_tail(self, closing: bytes) -> TraceHeader:
        """Decode the last events and the header fields after them."""
        text = closing + self.buffer
        try:
            if closing == b"[":
                self.on_events(_events_decoder(self.event_type).decode(text))
                return TraceHeader()
            document = _document_decoder(self.event_type).decode(text)
            self.on_events(document.traceEvents or [])
            return document.header()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            decoded = decode_leniently(text)
            if decoded is None:
                self._fail(text, closing, str(error))
        if isinstance(decoded, dict):
            self.on_events(_lenient_events(decoded.get("traceEvents"), self.event_type))
            return _header_from(decoded)
        self.on_events(_lenient_events(decoded, self.event_type))
        return TraceHeader()

    def _consume(self, count: int) -> None:
        self.buffer = self.buffer[count:]
        self.offset += count

    def _fail(self, text: bytes, prefix: bytes, message: str) -> NoReturn:
        end = self.offset + len(self.buffer)
        if not message:
            try:
                _syntax_decoder.decode(b"[" + text)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                message, prefix = str(error), b"["
        found = re.search(r"\(byte (\d+)\)", message)
        if found is None and not self.at_end:
            raise InvalidTrace(
                f"{self.path}: an event must have at most {MAX_EVENT_BYTES >> 20} MiB; "
                f"got a larger one after byte {self.offset}"
            )
        if found is None and "truncated" not in message:
            raise InvalidTrace(f"{self.path}: damaged after byte {self.offset}: {message}")
        if found is None:
            raise InvalidTrace(f"{self.path}: truncated: the text ends at byte {end} inside the trace")
        at = self.offset + int(found.group(1)) - len(prefix)
        what = re.sub(r"\s*\(byte \d+\)", "", message)
        raise InvalidTrace(f"{self.path}: damaged at byte {at}: {what}")


def _depth_change(text: bytes) -> int:
    """Opening minus closing brackets and braces of a text that begins outside of strings."""
    without_strings = _STRING.sub(b"", text)
    return sum(map(without_strings.count, (b"{", b"["))) - sum(map(without_strings.count, (b"}", b"]")))


def _header_from(document: dict[str, Any]) -> TraceHeader:
    return TraceHeader(**{field: document.get(field) for field in TraceHeader.__struct_fields__})


def _merge_headers(head: TraceHeader, tail: TraceHeader) -> TraceHeader:
    """The profiler's version determines whether a field comes before or after the events."""
    return TraceHeader(
        **{field: _first_known(getattr(head, field), getattr(tail, field)) for field in TraceHeader.__struct_fields__}
    )


def _first_known(a: Any, b: Any) -> Any:
    return b if a is None else a


def _decode_events(text: bytes, event_type: type[RawEvent]) -> list[RawEvent] | None:
    """The events of one array; None if the text is not a complete array."""
    try:
        return _events_decoder(event_type).decode(text)
    except msgspec.ValidationError:
        return _lenient_events(decode_leniently(text), event_type)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Invalid JSON is usually a wrong cut; the slow lenient decoder runs only if the text has NaN or control
        # characters.
        if not NONSTANDARD_JSON.search(text):
            return None
        decoded = decode_leniently(text)
        return None if decoded is None else _lenient_events(decoded, event_type)


def _lenient_events(values: Any, event_type: type[RawEvent]) -> list[RawEvent]:
    """Events with fields of unexpected types, converted if possible; others become events without times."""
    return [_lenient_event(v, event_type) for v in values] if isinstance(values, list) else []


def _lenient_event(value: Any, event_type: type[RawEvent]) -> RawEvent:
    for fields in (value, {**value, "args": None} if isinstance(value, dict) else None):
        try:
            return msgspec.convert(fields, event_type, strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError):  # a key may have half of a surrogate pair
            continue
    return event_type(ph="unusable")
