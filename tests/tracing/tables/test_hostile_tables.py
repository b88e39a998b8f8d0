"""Tables and counters of traces with values that no profiler writes: finite numbers and valid JSON, or an error."""

from __future__ import annotations

import gzip
import json
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.errors import InvalidTrace
from muster.tracing.reader import read_trace
from muster.tracing.tables.counter_tracks import write_with_counters
from muster.tracing.trace_details import Detail
from muster.tracing.trace_tables import TABLES, TableOptions, read_table

VALUES = ("1e300", "1e999", "-1e999", "-5", "NaN", "Infinity", "9.9e16", "1" + 30 * "0", '"abc"', '"12"', "[1]", "null")
ESCAPES = "\x1b]52;c;cHdu\x07\x1b[31m\x9b2J\u202e\ud800\nline\r\x00"


@pytest.fixture(autouse=True)
def overflows_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def event(cat: str, name: str, ts: float, /, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 5.0, "pid": 0, "tid": 7, "args": args}


def events(name: str = "k") -> list[dict[str, Any]]:
    copy = {"stream": 7, "correlation": 2, "bytes": 100, "memory bandwidth (GB/s)": 3.5}
    return [
        event("cpu_op", "aten::mm", 980.0),
        event("cuda_runtime", "cudaLaunchKernel", 981.0, correlation=1),
        event("kernel", name, 1000.0, stream=7, correlation=1),
        event("gpu_memcpy", name, 1010.0, **copy),
        event("cuda_profiler_range", name, 1020.0, **{name: 1.5}),
    ]


def check_tables(trace: Path, out: Path) -> None:
    for name in TABLES:
        for hta in (False, True):
            json.dumps(read_table(name, trace, TableOptions(operator="a", hta=hta)).rows, allow_nan=False)
    copy = write_with_counters(trace, out)
    assert read_trace(copy).decoded_events >= read_trace(trace).decoded_events
    with gzip.open(copy) as file:
        for one in json.load(file)["traceEvents"]:
            if one["ph"] == "C":
                assert all(math.isfinite(value) and abs(value) <= 1e6 for value in one["args"].values()), one


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["ts", "dur", "pid", "name", "cat", "args"])
def test_fields_of_any_value_give_finite_tables(key: str, value: str, tmp_path: Path) -> None:
    damaged = [{**one, key: "VALUE"} for one in events()]
    text = json.dumps({"traceEvents": [*events(), *damaged]}).replace('"VALUE"', value)
    (tmp_path / "trace.json").write_text(text)
    check_tables(tmp_path / "trace.json", tmp_path / "out")


@pytest.mark.parametrize("value", VALUES)
def test_arguments_and_headers_of_any_value_give_finite_tables(value: str, tmp_path: Path) -> None:
    damaged = [{**one, "args": {**one["args"], key: "VALUE"}} for one in events() for key in one["args"]]
    head = {"distributedInfo": {"rank": "VALUE", "world_size": "VALUE", "pg_config": "VALUE"}, "muster": "VALUE"}
    text = json.dumps({**head, "traceEvents": [*events(), *damaged]}).replace('"VALUE"', value)
    (tmp_path / "trace.json").write_text(text)
    check_tables(tmp_path / "trace.json", tmp_path / "out")


def test_names_with_escape_sequences_and_half_characters_are_kept_as_json(tmp_path: Path) -> None:
    head = {"muster": {"job": ESCAPES, "pipeline": {ESCAPES: 1}}, "deviceProperties": [{"name": ESCAPES}]}
    (tmp_path / "trace.json").write_text(json.dumps({**head, "traceEvents": events(ESCAPES)}))
    check_tables(tmp_path / "trace.json", tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "largest", "invalid"), [("ts", 2.9e15, 3.1e15), ("dur", 29 * 86_400e6, 31 * 86_400e6), ("dur", 0, -1)]
)
def test_times_beyond_what_nanoseconds_can_hold_are_counted_as_invalid(
    key: str, largest: float, invalid: float, tmp_path: Path
) -> None:
    def read(value: float) -> tuple[int, int]:
        (tmp_path / "trace.json").write_text(
            json.dumps({"traceEvents": [*events(), {**event("kernel", "k", -2.9e15), key: value}]})
        )
        trace = read_trace(tmp_path / "trace.json")
        assert (trace.events.end >= trace.events.start).all()
        return len(trace.events), trace.invalid_events

    assert read(largest) == (6, 0)
    assert read(invalid) == (5, 1)


def test_counters_stacks_and_flows_at_impossible_times_are_left_out(tmp_path: Path) -> None:
    hostile = [
        {**event("python_function", "f", 1e300), "dur": 1e300},
        {**event("python_function", "g", 1.0), "dur": 1e300},
        {**event("", "c", 1e17, x=1), "ph": "C"},
        {**event("", "c", 1.0, x=1, y="z"), "ph": "C"},
        {**event("f", "f", 1e100), "ph": "s", "id": 1},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [*events(), *hostile]}))
    details = read_trace(tmp_path / "trace.json", details={Detail.STACKS, Detail.COUNTERS, Detail.FLOWS}).details
    assert details is not None
    assert details.python_calls is not None
    assert (details.python_calls.end - details.python_calls.start).tolist() == [0]
    assert details.counters is not None
    assert details.counters.value.tolist() == [1.0]
    assert details.flows is not None
    assert len(details.flows.time) == 0


@pytest.mark.parametrize("nested", ['"args":' + '{"a":' * 50_000 + "1" + "}" * 50_000, '"x":' + "[" * 99_999])
def test_deep_nesting_is_an_error(nested: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(f'{{"traceEvents":[{{"ph":"X","cat":"kernel","ts":1,"dur":1,{nested}}}]}}')
    with pytest.raises(InvalidTrace, match=r"trace\.json"):
        read_table("kernel-counters", tmp_path / "trace.json")
    with pytest.raises(InvalidTrace, match=r"trace\.json"):
        write_with_counters(tmp_path / "trace.json", tmp_path / "out")


def test_a_large_name_in_a_small_gzip_file_is_an_error(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "trace.json.gz", "wb") as file:
        file.write(b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":1,"name":"')
        for _ in range(24):
            file.write(bytes(1 << 20).replace(b"\0", b"a"))
    with pytest.raises(InvalidTrace, match="at most 16 MiB"):
        read_table("kernels", tmp_path / "trace.json.gz")
