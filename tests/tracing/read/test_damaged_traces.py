"""Of a damaged trace everything that can be read is read, and what is lost is said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.kineto import Event, trace_text, training_steps

from muster.errors import InvalidTrace
from muster.tracing.read.damage import Damage
from muster.tracing.read.json_stream import StreamOptions, stream_events
from muster.tracing.read.raw_events import RawEvent
from muster.tracing.reader import read_trace

PATH_NAME = "train.py(3): C|Users|x"
BLOCKS = [200, 4096, 1 << 20]


def read(path: Path, block_bytes: int) -> tuple[list[RawEvent], Damage]:
    events: list[RawEvent] = []
    damage = Damage()
    stream_events(path, events.extend, StreamOptions(block_bytes, damage=damage))
    return events, damage


def written(path: Path, events: int, replaced: bytes = b"", by: bytes = b"", *, indent: int | None = 1) -> Path:
    """A trace of many events, of which the one in the middle has the name `PATH_NAME`."""
    steps = training_steps(events // 5)
    steps.insert(len(steps) // 2, Event(PATH_NAME, 10, 5))
    path.write_bytes(trace_text(steps, rank=3, indent=indent).replace(replaced, by, 1))
    return path


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("by", "name"),
    [
        (rb"C:\Users\train.py", r"C:\Users\train.py"),
        (b"C:\\Users\\x\\", "C:\\Users\\x\\"),
        (rb'a "quoted" word', 'a "quoted" word'),
        (rb'a", "word', 'a", "word'),
        (rb"C:\u12", r"C:\u12"),
    ],
)
def test_a_name_with_unescaped_backslashes_or_quotes_is_repaired(
    tmp_path: Path, by: bytes, name: str, indent: int | None, block_bytes: int
) -> None:
    path = written(tmp_path / "t.json", 200, PATH_NAME.encode(), by, indent=indent)
    events, damage = read(path, block_bytes)
    assert (len(events), damage.describe()) == (201, "")
    assert events[100].name == name


@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_an_event_that_cannot_be_repaired_is_left_out_and_its_byte_said(tmp_path: Path, block_bytes: int) -> None:
    path = written(tmp_path / "t.json", 200, PATH_NAME.encode() + b'"', b'name", : ')
    events, damage = read(path, block_bytes)
    assert len(events) == 200
    assert damage.events == 1
    assert abs(damage.first_byte - path.read_bytes().index(b'name", : ')) < 16
    assert damage.describe().startswith(f"1 event left out: damaged at byte {damage.first_byte}: ")
    trace = read_trace(path)
    assert (trace.rank, trace.decoded_events) == (3, 200), "the header is read too"


@given(st.integers(0, 200), st.sampled_from([b"!", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\x00"]), st.data())
def test_one_wrong_byte_loses_at_most_its_event(
    tmp_path_factory: pytest.TempPathFactory, event: int, wrong: bytes, data: st.DataObject
) -> None:
    path = written(tmp_path_factory.mktemp("wrong") / "t.json", 200, indent=None)
    text = path.read_bytes()
    begin = -1
    for _ in range(event + 1):
        begin = text.index(b'{"ph"', begin + 1)
    at = data.draw(st.integers(begin + 1, text.index(b"}}", begin) + 1))
    path.write_bytes(text[:at] + wrong + text[at + 1 :])
    events, _ = read(path, 4096)
    assert len(events) >= 195


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b"\xef\xbb\xbf" + trace_text(training_steps(), rank=3))
    assert read_trace(path).rank == 3


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("packed", [False, True])
def test_of_a_truncated_file_the_whole_events_are_read(tmp_path: Path, keep: float, packed: bool) -> None:
    text = trace_text(training_steps(40), rank=3)
    whole = gzip.compress(text) if packed else text
    path = tmp_path / ("cut.json.gz" if packed else "cut.json")
    path.write_bytes(whole[: int(len(whole) * keep)])
    trace = read_trace(path)
    assert trace.decoded_events == pytest.approx(keep * 200, abs=60 if packed else 5)
    assert trace.rank == 3
    assert trace.damage is not None
    assert trace.damage.end.startswith("truncated")
    assert "byte" in trace.damage.end


def test_flipped_bits_lose_only_what_follows(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(trace_text(training_steps(4000), rank=3), 1))
    packed[len(packed) * 3 // 4] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert trace.decoded_events > 5000
    assert trace.damage is not None


def test_a_file_of_which_nothing_can_be_read_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "na')
    with pytest.raises(InvalidTrace, match=r"t\.json: truncated: the text ends at byte 32"):
        read_trace(path)
    path.write_bytes(b'{"traceEvents": [' + b'{"ph": !},' * 20_000 + b'{"ph": "X"}]}')
    with pytest.raises(InvalidTrace, match="more than 10000 events are damaged, the first at byte"):
        read_trace(path)


def test_a_whole_file_has_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([event.as_json() for event in training_steps()]))
    assert read_trace(path).damage is None
