"""The events and the header of a trace as they are decoded: only what the analysis uses is built."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from muster.tracing.read.damage import escape_backslashes
from muster.tracing.read.lenient_json import NONSTANDARD_JSON, decode_leniently

_MAX_FIELD_BYTES = 1 << 20

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
    baseTimeNanoseconds: Any = None


class _Document(msgspec.Struct):
    """The header fields and the events. Fields are built by `header`, up to `_MAX_FIELD_BYTES`."""

    distributedInfo: msgspec.Raw = _ABSENT
    deviceProperties: msgspec.Raw = _ABSENT
    with_stack: msgspec.Raw = _ABSENT
    muster: msgspec.Raw = _ABSENT
    baseTimeNanoseconds: msgspec.Raw = _ABSENT
    traceEvents: list[RawEvent] | None = None

    def header(self) -> TraceHeader:
        """The fields that are not too large."""
        return TraceHeader(**{field: _decode_field(getattr(self, field)) for field in TraceHeader.__struct_fields__})


def _decode_field(field: msgspec.Raw) -> Any:
    return msgspec.json.decode(field) if 0 < len(bytes(field)) <= _MAX_FIELD_BYTES else None


@cache
def events_decoder(event_type: type[RawEvent]) -> msgspec.json.Decoder[list[RawEvent]]:
    """The decoder of an array of events."""
    return msgspec.json.Decoder(list[event_type])  # type: ignore[valid-type]


@cache
def document_decoder(event_type: type[RawEvent]) -> msgspec.json.Decoder[_Document]:
    """The decoder of a whole document."""
    fields = [("traceEvents", list[event_type] | None, None)]  # type: ignore[valid-type]
    return msgspec.json.Decoder(msgspec.defstruct("_Document", fields, bases=(_Document,)))


def header_from(document: dict[str, Any]) -> TraceHeader:
    """The header fields of a decoded document."""
    return TraceHeader(**{field: document.get(field) for field in TraceHeader.__struct_fields__})


def merge_headers(head: TraceHeader, tail: TraceHeader) -> TraceHeader:
    """The profiler's version determines whether a field comes before or after the events."""
    return TraceHeader(
        **{field: _first_known(getattr(head, field), getattr(tail, field)) for field in TraceHeader.__struct_fields__}
    )


def _first_known(a: Any, b: Any) -> Any:
    return b if a is None else a


def decode_events(text: bytes, event_type: type[RawEvent]) -> list[RawEvent] | None:
    """The events of one array; None if the text is not a complete array."""
    try:
        return events_decoder(event_type).decode(text)
    except msgspec.ValidationError:
        pass
    except (msgspec.MsgspecError, UnicodeDecodeError):
        repaired = escape_backslashes(text)
        if repaired != text:
            return decode_events(repaired, event_type)
        # Invalid JSON is usually a wrong cut; the slow lenient decoder runs only if the text has NaN or control
        # characters.
        if not NONSTANDARD_JSON.search(text):
            return None
    decoded = decode_leniently(text)
    return None if decoded is None else lenient_events(decoded, event_type)


def lenient_events(values: Any, event_type: type[RawEvent]) -> list[RawEvent]:
    """Events with fields of unexpected types, converted if possible; others become events without times."""
    return [_lenient_event(v, event_type) for v in values] if isinstance(values, list) else []


def _lenient_event(value: Any, event_type: type[RawEvent]) -> RawEvent:
    for fields in (value, {**value, "args": None} if isinstance(value, dict) else None):
        try:
            return msgspec.convert(fields, event_type, strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError):  # a key may have half of a surrogate pair
            continue
    return event_type(ph="unusable")
