"""Arguments, counters, stacks and flows of a trace are read if they are asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.tracing.kineto import DATA, Event, kernel, launch, write_trace

from muster.errors import InvalidTrace
from muster.tracing.read.json_stream import TraceLimits
from muster.tracing.reader import read_trace
from muster.tracing.trace_details import Detail

EXTRA = [
    {"ph": "C", "name": "sm__cycles", "pid": 0, "tid": 0, "ts": 30, "args": {"active": 7, "text": "x", "idle": 2.5}},
    {"ph": "X", "cat": "python_function", "name": "train.py(4): main", "pid": 100, "tid": 1, "ts": 5, "dur": 40,
     "args": {"Python id": 1, "Python parent id": None}},
    {"ph": "X", "cat": "python_function", "name": "train.py(9): step", "pid": 100, "tid": 1, "ts": 6, "dur": 20,
     "args": {"Python id": 2, "Python parent id": 1}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 100, "tid": 1, "ts": 10},
    {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 3, "pid": 0, "tid": 7, "ts": 20, "bp": "e"},
]  # fmt: skip


COLLECTIVE = (
    *(("Collective name", "allreduce"), ("Seq", 5), ("dtype", "BFloat16"), ("In msg nelems", 6), ("Out msg nelems", 6)),
    *(("Process Group Name", "2"), ("Process Group Ranks", "[0, 3]")),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    wait = (("wait_on_stream", 7), ("wait_on_cuda_event_record_corr_id", 3), ("External id", 11))
    path = write_trace(
        tmp_path / "trace.json",
        [
            Event("aten::mm", 8, 30, args=(("Sequence number", 42), ("External id", 11))),
            launch(3, 10),
            kernel("ncclDevKernel", 20, 5, launch=3),
            Event("Stream Wait Event", 26, 0, "cuda_sync", stream=9, correlation=4, args=wait),
            Event("ncclDevKernel", 27, 5, "kernel", stream=9, args=COLLECTIVE),
        ],
    )
    document = json.loads(path.read_text())
    document["traceEvents"] += EXTRA
    path.write_text(json.dumps(document))
    return path


def test_nothing_more_is_read_without_being_asked_for(path: Path) -> None:
    trace = read_trace(path)
    assert trace.details is None
    assert "train.py(4): main" not in trace.names


def test_each_detail_is_read_alone(path: Path) -> None:
    for detail in Detail:
        found = read_trace(path, details={detail}).details
        assert found is not None
        filled = {name for name in found.__slots__ if getattr(found, name) is not None}
        assert (
            filled
            == {
                Detail.SEQUENCE: {"collective_sequence", "operator_sequence"},
                Detail.DTYPE: {"dtype"},
                Detail.EXTERNAL_ID: {"external_id"},
                Detail.WAITS: {"waited_stream", "waited_correlation"},
                Detail.COUNTERS: {"counters"},
                Detail.STACKS: {"python_calls"},
                Detail.FLOWS: {"flows"},
                Detail.COPIES: {"copied_bytes", "bandwidth"},
                Detail.KERNEL_COUNTERS: {"kernel_counters"},
            }[detail]
        )


def test_arguments_are_columns_beside_the_events(path: Path) -> None:
    trace = read_trace(path, details={Detail.SEQUENCE, Detail.EXTERNAL_ID, Detail.WAITS})
    found = trace.details
    assert found is not None
    assert [trace.names[name] for name in trace.events.name] == [
        *("aten::mm", "cudaLaunchKernel", "ncclDevKernel", "Stream Wait Event", "ncclDevKernel")
    ]
    assert [None if column is None else column.tolist() for column in (
        found.collective_sequence, found.operator_sequence, found.external_id, found.waited_stream,
        found.waited_correlation,
    )] == [
        [-1, -1, -1, -1, 5],
        [42, -1, -1, -1, -1],
        [11, -1, -1, 11, -1],
        [-1, -1, -1, 7, -1],
        [-1, -1, -1, 3, -1],
    ]  # fmt: skip


def test_a_collective_has_its_group_ranks_number_size_and_dtype(path: Path) -> None:
    trace = read_trace(path, details={Detail.SEQUENCE, Detail.DTYPE})
    events, found = trace.events, trace.details
    assert found is not None
    assert found.dtype is not None
    assert found.collective_sequence is not None
    assert trace.names[events.collective[-1]] == "allreduce"
    assert trace.names[events.group[-1]] == "2 [0, 3]"
    assert (found.collective_sequence[-1], events.message_bytes[-1]) == (5, 12)
    assert [trace.names[name] if name >= 0 else None for name in found.dtype] == [None, None, None, None, "BFloat16"]


def test_counters_stacks_and_flows_are_tables_with_times_since_the_origin(path: Path) -> None:
    trace = read_trace(path, details={Detail.COUNTERS, Detail.STACKS, Detail.FLOWS})
    found = trace.details
    assert found is not None
    counters, calls, flows = found.counters, found.python_calls, found.flows
    assert counters is not None
    assert calls is not None
    assert flows is not None
    series = [(trace.names[name], trace.names[part]) for name, part in zip(counters.name, counters.series, strict=True)]
    assert series == [("sm__cycles", "active"), ("sm__cycles", "idle")]
    assert counters.value.tolist() == [7.0, 2.5]
    assert counters.time.tolist() == [22_000, 22_000]  # the origin is the first event that is kept, at 8 us
    assert [trace.names[name] for name in calls.name] == ["train.py(4): main", "train.py(9): step"]
    assert np.column_stack((calls.start, calls.end, calls.id, calls.parent)).tolist() == [
        [-3_000, 37_000, 1, -1],
        [-2_000, 18_000, 2, 1],
    ]
    assert [trace.names[category] for category in flows.category] == ["ac2g", "ac2g"]
    assert np.column_stack((flows.id, flows.time, flows.is_start)).tolist() == [[3, 2_000, 1], [3, 12_000, 0]]
    assert trace.threads[flows.thread[1]].tid == "7"


@pytest.mark.parametrize("name", ["simple_add", "lightning"])
def test_the_events_are_the_same_with_details(name: str) -> None:
    plain, detailed = (read_trace(DATA / f"{name}.json.gz", details=wanted) for wanted in (set(), set(Detail)))
    for column in plain.events.__slots__:
        own, other = getattr(plain.events, column), getattr(detailed.events, column)
        if column in ("name", "collective", "group"):  # positions in the names differ
            own, other = ([t.names[i] if i >= 0 else "" for i in c] for t, c in ((plain, own), (detailed, other)))
            assert own == other
        elif column == "thread":
            assert [plain.threads[i] for i in own] == [detailed.threads[i] for i in other]
        else:
            assert own.tolist() == other.tolist()


def test_details_count_for_the_limit_of_events(path: Path) -> None:
    assert read_trace(path, TraceLimits(events=6)).details is None
    with pytest.raises(InvalidTrace, match="must have at most 6 events"):
        read_trace(path, TraceLimits(events=6), {Detail.STACKS})
