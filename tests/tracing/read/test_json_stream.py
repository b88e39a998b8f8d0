"""Reading in blocks gives the same events as reading at once; errors name file and byte."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tracing.kineto import DATA, Event, kernel, launch, trace_text, training_steps

from muster.errors import InvalidTrace
from muster.tracing.read import json_stream as scanning
from muster.tracing.read.json_stream import StreamOptions, stream_events
from muster.tracing.read.raw_events import RawEvent
from muster.tracing.reader import read_trace, validate_trace

# Texts that look like the place where one event ends and the next begins, or like the array's own beginning.
tricky = st.sampled_from(
    ["}, {", '"}, {"', '\\"},\n  {', '{"traceEvents": [', "]}", "}]", "ä∂", "\\", '"traceEvents":[']
)
values = st.recursive(
    tricky | st.integers(-5, 5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=5,
)


def checked(path: Path) -> int:
    with path.open("rb") as file:
        return validate_trace(file, path)


def scanned(path: Path, block_bytes: int) -> list[RawEvent]:
    events: list[RawEvent] = []
    stream_events(path, events.extend, StreamOptions(block_bytes))
    return events


@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.just("X"), "name": tricky, "args": st.dictionaries(tricky, values, max_size=2)}
        ),
        max_size=12,
    ),
    st.dictionaries(st.sampled_from(["a", '"traceEvents":[', "b"]), values, max_size=2),
    st.sampled_from([1, 7, 64, 300, 4 << 20]),
    st.sampled_from([None, 1]),
)
def test_any_block_size_gives_the_same_events(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[dict[str, object]],
    beside: dict[str, object],
    block_bytes: int,
    indent: int | None,
) -> None:
    path = tmp_path_factory.mktemp("scan") / "trace.json"
    path.write_text(json.dumps({**beside, "traceEvents": events, "tail": [{"x": 1}, {"y": 2}]}, indent=indent))
    assert [e.name for e in scanned(path, block_bytes)] == [e["name"] for e in events]


def test_a_bare_array_of_events_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([e.as_json() for e in training_steps()]))
    assert read_trace(path).decoded_events == len(training_steps())


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_is_rejected_with_name_and_byte(tmp_path: Path, keep: float, packed: bool) -> None:
    text = trace_text(training_steps(40))
    whole = gzip.compress(text) if packed else text
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(InvalidTrace, match=r"cut\.json: truncated.*byte \d+"):
        checked(path)


def test_damage_is_reported_at_its_byte(tmp_path: Path) -> None:
    text = bytearray(trace_text(training_steps(400)))
    at = text.index(b'"ts": 200050.0') + 3
    text[at] = ord("!")
    path = tmp_path / "bad.json"
    path.write_bytes(text)
    with pytest.raises(InvalidTrace, match=r"bad\.json: damaged at byte (\d+)") as caught:
        scanned(path, 4096)
    named = int(str(caught.value).split("byte ")[1].split(":")[0])
    assert abs(named - at) < 16


def test_flipped_bits_in_a_compressed_file_are_damage(tmp_path: Path) -> None:
    packed = bytearray((DATA / "simple_add.json.gz").read_bytes())
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "flipped.json.gz"
    path.write_bytes(packed)
    with pytest.raises(InvalidTrace, match=r"flipped\.json\.gz"):
        checked(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b'{"a": 1}', "without traceEvents"),
        (b'{"traceEvents": []}', "has no events"),
        (b"not json", "damaged at byte"),
        (b'{"traceEvents": 3}', "without traceEvents"),
    ],
)
def test_a_file_that_is_not_a_trace_is_rejected_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InvalidTrace, match=message):
        checked(path)


def test_nonstandard_numbers_and_texts_are_read(tmp_path: Path) -> None:
    """Profilers have written nan, inf, raw control characters and bytes that are not UTF-8."""
    text = trace_text(training_steps(200)).replace(b'"args": {}', b'"args": {"bandwidth": -inf, "x": nan}')
    text = text.replace(b"aten::mm", b"aten::m\x01m\xff", 1)
    path = tmp_path / "odd.json"
    path.write_bytes(text)
    assert len(scanned(path, 4096)) == len(training_steps(200))


def test_a_field_of_an_unexpected_type_invalidates_only_its_event(tmp_path: Path) -> None:
    text = (
        trace_text(training_steps(3))
        .replace(b'"ts": 50.0', b'"ts": "50.0"', 1)
        .replace(b'"dur": 1000', b'"dur": {}', 1)
    )
    path = tmp_path / "types.json"
    path.write_bytes(text)
    trace = read_trace(path)
    assert (trace.decoded_events, trace.invalid_events, len(trace.events)) == (15, 1, 14)


def test_events_without_a_valid_time_are_counted_and_skipped(tmp_path: Path) -> None:
    events = [*training_steps(2), Event("aten::add", 5, -3)]
    path = tmp_path / "t.json"
    path.write_bytes(trace_text(events))
    trace = read_trace(path)
    assert (trace.invalid_events, len(trace.events)) == (1, 10)


def test_a_trace_has_rank_threads_and_launch_correlations(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(trace_text([launch(5, 1.0), kernel("gemm", 4.0, 2.5, stream=7, launch=5)], rank=3, world_size=8))
    trace = read_trace(path)
    assert (trace.rank, trace.world_size, trace.backend) == (3, 8, "gloo")
    assert trace.kernels.stream.tolist() == [7]
    assert trace.kernels.correlation.tolist() == trace.launches.correlation.tolist() == [5]
    assert (trace.kernels.start - trace.launches.start).tolist() == [3000]
    assert trace.kernels.duration.tolist() == [2500]


def test_compact_json_keeps_the_rank(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(trace_text(training_steps(), rank=3, indent=None).replace(b": ", b":"))
    assert read_trace(path).rank == 3


def test_the_header_is_scanned_once_even_if_it_contains_the_events_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = []
    opened = scanning._depth_change

    def counted(text: bytes) -> int:
        looked_at.append(len(text))
        return opened(text)

    monkeypatch.setattr(scanning, "_depth_change", counted)
    inner = ",".join('"traceEvents": []' for _ in range(2000))
    path = tmp_path / "t.json"
    path.write_text(f'{{"beside": {{{inner}}}, "traceEvents": [{{"ph": "X"}}]}}')
    for block_bytes in (64, 1 << 20):
        looked_at.clear()
        assert len(scanned(path, block_bytes)) == 1
        assert sum(looked_at) <= path.stat().st_size


MIB = 1 << 20


@pytest.mark.parametrize(
    ("before", "odd", "after", "message"),
    [
        (
            b'{"traceEvents":[{"ph":"X","args":{"x":["',
            b"x",
            b'"]}}]}',
            "an event must have at most 16 MiB; .* byte 16",
        ),
        (b'{"x":"', b"x", b'","traceEvents":[{"ph":"X"}]}', "no traceEvents in its first 16 MiB"),
    ],
)
def test_an_event_or_the_header_may_have_16_mib(
    tmp_path: Path, before: bytes, odd: bytes, after: bytes, message: str
) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(before + odd * (15 * MIB) + after)
    assert checked(path) == 1
    path.write_bytes(before + odd * (18 * MIB) + after)
    with pytest.raises(InvalidTrace, match=f"large.json: {message}"):
        checked(path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b'{"traceEvents":[{"ph":"X","pid":[', b"]}]}", r"damaged after byte 16: .*pid"),
        (b'{"distributedInfo":[', b'],"traceEvents":[{"ph":"X"}]}', ""),
    ],
)
def test_values_of_unexpected_types_are_not_built(tmp_path: Path, before: bytes, after: bytes, message: str) -> None:
    """6 MiB of empty lists would take 140 MiB as Python objects."""
    path = tmp_path / "odd.json"
    path.write_bytes(before + b"[]," * (2 * MIB) + b"0" + after)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTrace, match=message) if message else nullcontext():
            assert checked(path) == 1
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b'{"traceEvents":[{"ph":"X","args":{"x":%s}}]}', b'{"x":%s,"traceEvents":[{}]}'])
def test_deep_nesting_is_damage(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(text % (b"[" * 20_000 + b"]" * 20_000))
    with pytest.raises(InvalidTrace, match=r"deep\.json: damaged: nested too deeply"):
        checked(path)


def test_arguments_of_an_unexpected_type_do_not_invalidate_the_event(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(trace_text(training_steps(3)).replace(b'"args": {}', b'"args": {"stream": [7]}', 1))
    trace = read_trace(path)
    assert (trace.decoded_events, trace.invalid_events, len(trace.events)) == (15, 0, 15)
