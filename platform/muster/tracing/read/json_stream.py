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
from io import BufferedIOBase
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, NoReturn, cast

import msgspec

from muster.errors import InvalidTrace
from muster.tracing.read.archives import DAMAGED_ARCHIVE, GZIP_MAGIC, open_trace
from muster.tracing.read.damage import (
    EVENT_BOUNDARY,
    MAX_DAMAGED_EVENTS,
    MAX_EVENTS_OF_DAMAGE,
    SYNTAX,
    Damage,
    plain_message,
    repair_event,
    syntax_error,
)
from muster.tracing.read.lenient_json import decode_leniently
from muster.tracing.read.raw_events import (
    RawEvent,
    TraceHeader,
    decode_events,
    document_decoder,
    events_decoder,
    header_from,
    lenient_events,
    merge_headers,
)

BLOCK_BYTES = 1 << 20
# Maximum size of one event, and of the text before the first; a larger block that does not decode is damaged.
MAX_EVENT_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ARRAY_END = re.compile(rb"\}\s*\]")
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*(?=\[)')
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)', re.DOTALL)

DAMAGED_PACKING = (EOFError, zlib.error, gzip.BadGzipFile, *DAMAGED_ARCHIVE)
NOT_A_TRACE = "NotATrace"
TOO_LARGE = "TooLarge"
MAX_TEXT_BYTES = 4 << 30


# Microseconds; times (since 1970, until 2065) and durations (30 days) beyond are invalid. Nanoseconds fit into 64 bits.
MAX_TIME_US = 3e15
MAX_DURATION_US = 30 * 86_400e6

EventCallback = Callable[[list[RawEvent]], None]


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Limits for one trace: uncompressed bytes, and events kept in memory.

    The defaults are about fifteen times those of a trace of 280 MB of JSON with 870,000 events.
    """

    text_bytes: int = MAX_TEXT_BYTES
    events: int = 12_000_000


DEFAULT_LIMITS = TraceLimits()


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a trace is streamed: in blocks of `block_bytes`, of at most `max_bytes` of uncompressed text, its events as
    `event_type`. With `damage`, what cannot be read is left out and recorded there; without it, that is an error."""

    block_bytes: int = BLOCK_BYTES
    max_bytes: int = MAX_TEXT_BYTES
    event_type: type[RawEvent] = RawEvent
    damage: Damage | None = None


DEFAULT_OPTIONS = StreamOptions()


def stream_events(path: Path, on_events: EventCallback, options: StreamOptions = DEFAULT_OPTIONS) -> TraceHeader:
    """Call `on_events` with the events of the file block by block. The file may be gzipped, or be in an archive.

    Raises InvalidTrace, with the file and the byte (of the uncompressed text), for a truncated or damaged file, with
    `options.damage` only if none of its events can be read; with reason NotATrace for valid JSON without events, and
    TooLarge for too much text.
    """
    with open_trace(path) as file:
        return stream_file(file, path, on_events, options)


def unpack(file: IO[bytes]) -> IO[bytes]:
    """The text of an open file, which may be gzipped, from its beginning."""
    file.seek(0)
    compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file


def locate_events(path: Path) -> int:
    """The offset in the uncompressed text at which the array of events begins, after its bracket."""
    with open_trace(path) as file:
        stream = _EventStream(path, unpack(file), lambda _: None, DEFAULT_OPTIONS)
        stream.begin()
        return stream.offset


def stream_file(
    file: IO[bytes], path: Path, on_events: EventCallback, options: StreamOptions = DEFAULT_OPTIONS
) -> TraceHeader:
    """As `stream_events`, for an open file, from its beginning; `path` is used in messages."""
    try:
        return _EventStream(path, unpack(file), on_events, options).run()
    except RecursionError as error:
        raise InvalidTrace(f"{path}: damaged: nested too deeply") from error
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise InvalidTrace(f"{path}: damaged gzip data: {error}") from error
        raise


class _EventStream:
    """One pass over one file: `buffer` is text not yet decoded, `offset` its offset in the uncompressed text."""

    def __init__(self, path: Path, source: IO[bytes], on_events: EventCallback, options: StreamOptions) -> None:
        self.block_bytes, self.max_bytes = options.block_bytes, options.max_bytes
        self.event_type, self.damage = options.event_type, options.damage
        self.path, self.on_events = path, on_events
        self.source = cast(BufferedIOBase, source)
        self.buffer, self.offset, self.at_end = b"", 0, False

    def begin(self) -> tuple[TraceHeader, bytes]:
        """Consume the text before the first event, as `_read_header`."""
        self._read()
        if not self.buffer:
            raise InvalidTrace(f"{self.path}: is empty (0 bytes)")
        while len(self.buffer) < len(BYTE_ORDER_MARK) and not self.at_end:
            self._read()
        if self.buffer.startswith(BYTE_ORDER_MARK):
            self._consume(len(BYTE_ORDER_MARK))
        return self._read_header()

    def run(self) -> TraceHeader:
        head, closing = self.begin()
        need = self.block_bytes
        while True:
            while len(self.buffer) < need and not self.at_end:
                self._read()
            if self.at_end:
                return merge_headers(head, self._decode_tail(closing))
            if self._decode_block() or self._pass_damage():
                need = self.block_bytes
            elif len(self.buffer) < MAX_EVENT_BYTES:
                # Either no event ends in this block, or the array does: read more.
                need = min(2 * len(self.buffer), MAX_EVENT_BYTES)
            else:
                self._fail(self.buffer, b"", "")

    def _read(self) -> None:
        """Append a block to the buffer."""
        parts, size = [self.buffer], 0
        while size < self.block_bytes and not self.at_end:
            parts.append(self._read_part(self.offset + len(self.buffer) + size, self.block_bytes - size))
            size += len(parts[-1])
        self.buffer = b"".join(parts)
        if self.offset + len(self.buffer) > self.max_bytes:
            raise InvalidTrace(
                f"{self.path}: must have at most {self.max_bytes} bytes uncompressed (--max-trace-bytes)",
                reason=TOO_LARGE,
            )

    def _read_part(self, at: int, most: int) -> bytes:
        """What is unpacked at once from a byte of the text on, of at most `most` bytes."""
        try:
            part = self.source.read1(most)
        except DAMAGED_PACKING as error:
            problem = f"truncated or damaged gzip data after byte {at}: {error}"
            if self.damage is None or not at:
                raise InvalidTrace(f"{self.path}: {problem}") from error
            self.damage.end, part = problem, b""
        self.at_end = not part
        return part

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
            header = document_decoder(self.event_type).decode(text).header()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            decoded = decode_leniently(text)
            if not isinstance(decoded, dict):
                self._fail(text, b"", str(error))
            header = header_from(decoded)
        self._consume(end + 1)
        return header

    def _fail_without_events(self) -> NoReturn:
        if not self.at_end:
            raise InvalidTrace(f"{self.path}: no traceEvents in its first {MAX_EVENT_BYTES >> 20} MiB")
        try:
            SYNTAX.decode(self.buffer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail(self.buffer, b"", str(error))
        raise InvalidTrace(f"{self.path}: not a trace: JSON without traceEvents", reason=NOT_A_TRACE)

    def _decode_block(self) -> bool:
        """Decode up to the last event that ends in the buffer; False if none of the last four cuts can be decoded."""
        tail = max(0, len(self.buffer) - (256 << 10))
        cuts = [m.start() + 1 for m in EVENT_BOUNDARY.finditer(self.buffer, tail)][-4:]
        for cut in reversed(cuts):
            if self._decode_to(cut):
                self._consume(self.buffer.index(b",", cut) + 1)
                return True
            error = syntax_error(b"[" + self.buffer[:cut])
            if error is not None and error[0] < cuts[0]:
                return False  # damaged before all of the cuts
        return False

    def _decode_to(self, end: int) -> bool:
        """Decode the events up to a byte of the buffer; False if that is not the end of an event."""
        events = decode_events(b"[" + self.buffer[:end] + b"]", self.event_type)
        if events is not None:
            self.on_events(events)
        return events is not None

    def _pass_damage(self) -> bool:
        """Decode up to the first event that is not JSON, and repair that or leave it out. False if there is none, and
        if the next one has not been read yet."""
        found = syntax_error(b"[" + self.buffer[: 64 << 10]) or syntax_error(b"[" + self.buffer)
        if self.damage is None or found is None or "trailing characters" in found[1]:
            return False
        at = found[0] - 1
        resume = self._next_event(at)
        if resume is None:
            return False
        begin = 0
        earlier = [m.start() + 1 for m in EVENT_BOUNDARY.finditer(self.buffer, max(0, at - (256 << 10)), max(at, 0))]
        for cut in reversed(earlier[-MAX_EVENTS_OF_DAMAGE:]):
            if self._decode_to(cut):
                begin = self.buffer.index(b",", cut) + 1
                break
        end, after = resume
        repaired = decode_events(b"[" + repair_event(self.buffer[begin:end]) + b"]", self.event_type)
        if repaired is not None:
            self.on_events(repaired)
        else:
            if not self.damage.events:
                self.damage.first_byte, self.damage.problem = self.offset + at, found[1]
            self.damage.events += 1 + sum(1 for _ in EVENT_BOUNDARY.finditer(self.buffer, begin, end))
            if self.damage.events > MAX_DAMAGED_EVENTS:
                raise InvalidTrace(f"{self.path}: more than {MAX_DAMAGED_EVENTS} events are damaged, the first at byte "
                                   f"{self.damage.first_byte}: {self.damage.problem}")  # fmt: skip
        self._consume(after)
        return True

    def _next_event(self, at: int) -> tuple[int, int] | None:
        """The end of the damaged event around a byte, and where the text continues: at the first event after it that
        can be decoded, or at the end of the array."""
        ends = [match.start() + 1 for match in islice(EVENT_BOUNDARY.finditer(self.buffer, at), MAX_EVENTS_OF_DAMAGE)]
        for end, following in zip_longest(ends, ends[1:]):
            begin = self.buffer.index(b",", end) + 1
            if following is not None:
                if decode_events(b"[" + self.buffer[begin:following] + b"]", self.event_type) is not None:
                    return end, begin
            elif self.at_end:
                error = syntax_error(b"[" + self.buffer[begin:])
                if error is None or "trailing characters" in error[1]:
                    return end, begin
        if len(ends) == MAX_EVENTS_OF_DAMAGE:
            return ends[-1], self.buffer.index(b",", ends[-1]) + 1
        last = ARRAY_END.search(self.buffer, at) if self.at_end else None
        return None if last is None else (last.start() + 1, last.end() - 1)

    def _decode_tail(self, closing: bytes) -> TraceHeader:
        """Decode the last events and the header fields after them."""
        while isinstance(header := self._decode_rest(closing), str):
            if self.damage is None:
                self._fail(closing + self.buffer, closing, header)
            if not self._pass_damage():
                return self._decode_incomplete(self.damage)
        return header

    def _decode_rest(self, closing: bytes) -> TraceHeader | str:
        """As `_decode_tail`; what is wrong if the text is not JSON."""
        text = closing + self.buffer
        try:
            if closing == b"[":
                self.on_events(events_decoder(self.event_type).decode(text))
                return TraceHeader()
            document = document_decoder(self.event_type).decode(text)
            self.on_events(document.traceEvents or [])
            return document.header()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            decoded = decode_leniently(text)
            if decoded is None:
                return str(error)
        if isinstance(decoded, dict):
            self.on_events(lenient_events(decoded.get("traceEvents"), self.event_type))
            return header_from(decoded)
        self.on_events(lenient_events(decoded, self.event_type))
        return TraceHeader()

    def _decode_incomplete(self, damage: Damage) -> TraceHeader:
        """Decode the whole events of a text that ends before the trace does, or is damaged after its events."""
        end = self.offset + len(self.buffer)
        error = syntax_error(b"[" + self.buffer)
        if (
            error is not None
            and "trailing characters" in error[1]
            and self._decode_to(self.buffer.rindex(b"]", 0, error[0]))
        ):
            damage.after = (
                damage.end or f"what follows the events is damaged, from byte {self.offset + error[0] - 1} on"
            )
            damage.end = ""
            return TraceHeader()
        damage.end = damage.end or f"truncated: the text ends at byte {end} inside the trace"
        tail = max(0, len(self.buffer) - (256 << 10))
        cuts = [m.start() + 1 for m in EVENT_BOUNDARY.finditer(self.buffer, tail)]
        for cut in (self.buffer.rfind(b"}") + 1, *reversed(cuts[-MAX_EVENTS_OF_DAMAGE:])):
            if self._decode_to(cut):
                break
        return TraceHeader()

    def _consume(self, count: int) -> None:
        self.buffer = self.buffer[count:]
        self.offset += count

    def _fail(self, text: bytes, prefix: bytes, message: str) -> NoReturn:
        end = self.offset + len(self.buffer)
        if not message:
            try:
                SYNTAX.decode(b"[" + text)
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
        raise InvalidTrace(f"{self.path}: damaged at byte {at}: {plain_message(message)}")


def _depth_change(text: bytes) -> int:
    """Opening minus closing brackets and braces of a text that begins outside of strings."""
    without_strings = _STRING.sub(b"", text)
    return sum(map(without_strings.count, (b"{", b"["))) - sum(map(without_strings.count, (b"}", b"]")))
