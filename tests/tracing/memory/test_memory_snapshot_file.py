"""Memory snapshots are read without running what they contain, within bounds, or refused with the reason."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.memory_snapshots import ModelAllocator, Training, train, write_snapshot

from muster.errors import InvalidTrace
from muster.tracing.memory.rank_memory import UnreadableSnapshot, analyse_snapshot_file
from muster.tracing.memory.snapshot import decode_snapshot
from muster.tracing.read.restricted_pickle import MemoryLimits, read_pickle

EVENTS = 10_000


@pytest.fixture
def snapshot() -> dict[str, Any]:
    return train(ModelAllocator(), 1, Training()).snapshot()


def refusal(path: Path, limits: MemoryLimits | None = None) -> str:
    with pytest.raises(InvalidTrace) as caught:
        read_pickle(path, limits or MemoryLimits())
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path, snapshot: dict[str, Any], protocol: int) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol))
    assert read_pickle(path) == snapshot


def test_a_compressed_snapshot_is_read(tmp_path: Path, snapshot: dict[str, Any]) -> None:
    path = tmp_path / "a.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot)))
    assert read_pickle(path) == snapshot


class _Call:
    """A pickle of this calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self._call


def test_a_snapshot_that_calls_a_function_is_refused_by_its_name_and_the_function_is_not_called(
    tmp_path: Path, snapshot: dict[str, Any]
) -> None:
    mark = tmp_path / "called"
    path = write_snapshot(tmp_path / "a.pickle", snapshot | {"more": _Call(os.mkdir, str(mark))})
    assert refusal(path) == (
        "must contain dicts, lists, tuples, strings and numbers only; got posix.mkdir, which is not run"
    )
    assert not mark.exists()


def test_other_classes_are_refused_by_name(tmp_path: Path) -> None:
    assert "got pathlib.PosixPath, which" in refusal(write_snapshot(tmp_path / "a.pickle", {"segments": [tmp_path]}))
    assert "got builtins.eval, which" in refusal(write_snapshot(tmp_path / "b.pickle", _Call(eval, "1 + 1")))
    assert "got builtins.complex, which" in refusal(write_snapshot(tmp_path / "c.pickle", {"segments": 1j}))


def test_a_reference_to_an_object_outside_the_pickle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(b"\x80\x02X\x03\x00\x00\x00abcQ.")
    assert "a reference to an object outside the pickle" in refusal(path)


def test_a_truncated_snapshot_is_refused_wherever_it_ends(tmp_path: Path, snapshot: dict[str, Any]) -> None:
    whole = pickle.dumps(snapshot)
    path = tmp_path / "a.pickle"
    for size in (2, 3, 11, 12, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert refusal(path) == f"truncated: the file ends at byte {size} inside the pickle"


def test_a_truncated_compressed_snapshot_is_refused(tmp_path: Path, snapshot: dict[str, Any]) -> None:
    path = tmp_path / "a.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot))[:-20])
    assert refusal(path).startswith("truncated: the file ends at byte ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "must be a pickle of a memory snapshot; the file is empty"),
        (b'{"traceEvents": []}', "must be a pickle of a memory snapshot; it begins with b'{\"'"),
        (b"\x80\x04\xff\xff\xff", "the pickle is damaged: "),
        (b"\x1f\x8bnot gzip at all", "cannot be read: "),
    ],
)
def test_a_file_that_is_no_pickle_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    assert refusal(path).startswith(reason)


def test_a_snapshot_above_the_limit_of_bytes_is_refused_also_if_it_is_small_when_compressed(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "text": [f"{number:050000}" for number in range(100)]}))
    assert refusal(path, MemoryLimits(pickle_bytes=4_000_000)) == "must have at most 4000000 bytes (unpacked)"
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert path.stat().st_size < 100_000
    assert refusal(path, MemoryLimits(pickle_bytes=4_000_000)) == "must have at most 4000000 bytes (unpacked)"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the address space is limited on Linux only")
def test_a_small_pickle_that_takes_much_memory_is_refused_and_the_limit_is_lifted_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    before = resource.getrlimit(resource.RLIMIT_AS)
    # The second opcode stores the list as number 2^30 of the memo, whose table has 8 bytes for each number.
    path.write_bytes(b"\x80\x02]r\x00\x00\x00\x40.")
    assert refusal(path, MemoryLimits(memory_bytes=1 << 30)) == "needs more than 1.00 GiB of memory to be read"
    path.write_bytes(b"\x80\x04" + b"]" * 5_000_000)  # 56 bytes for each
    assert refusal(path, MemoryLimits(memory_bytes=64 << 20)) == "needs more than 64.0 MiB of memory to be read"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pickle")
    with pytest.raises(OSError, match="must be a regular file; got a FIFO"):
        read_pickle(tmp_path / "a.pickle")


def test_more_events_or_blocks_than_the_limit_are_refused(snapshot: dict[str, Any]) -> None:
    events = len(snapshot["device_traces"][0])
    decode_snapshot(snapshot, events)
    with pytest.raises(InvalidTrace, match=f"must have at most {events - 1} events; got {events}$"):
        decode_snapshot(snapshot, events - 1)
    segment = {"address": 0, "total_size": 0, "blocks": [{"size": 0, "state": "inactive"}] * 1000}
    with pytest.raises(InvalidTrace, match="at most 10,000 segments and blocks; got 100,100,000"):
        decode_snapshot({"segments": [segment] * 100_000, "device_traces": []}, EVENTS)


EVENT = {"action": "alloc", "addr": 1, "size": 1, "frames": []}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("text", "must be a dict with the key 'segments'"),
        ({}, "must be a dict with the key 'segments'"),
        ({"segments": [], "device_traces": {}}, "'device_traces' must be a list of lists"),
        ({"segments": [], "device_traces": [[]] * 2000}, "at most 1024 devices; got 2000"),
        ({"segments": [], "device_traces": [[1]]}, "an event must be a dict"),
        ({"segments": [], "device_traces": [[EVENT | {"size": -1}]]}, "'size' of events must be from 0 to 2^50"),
        (
            {"segments": [], "device_traces": [[EVENT | {"size": 2.5}]]},
            "'size' of an event must be an integer; got a f",
        ),
        (
            {"segments": [], "device_traces": [[EVENT | {"addr": "7"}]]},
            "'addr' of an event must be an integer; got a s",
        ),
        ({"segments": [], "device_traces": [[EVENT | {"addr": 1 << 70}]]}, "of a known format: OverflowError"),
        ({"segments": [], "device_traces": [[EVENT | {"frames": "abc"}]]}, "'frames' must be a list"),
        ({"segments": [], "device_traces": [[EVENT | {"frames": [{}]}]]}, "of a known format: KeyError: 'filename'"),
        ({"segments": [], "device_traces": [[EVENT | {"action": []}]]}, "of a known format: TypeError"),
        ({"segments": [{"blocks": []}], "device_traces": []}, "'address' must be an integer of 64 bits"),
        ({"segments": [[]], "device_traces": []}, "of a known format: TypeError"),
    ],
)
def test_a_pickle_that_is_no_snapshot_is_refused_with_the_reason(raw: Any, reason: str) -> None:
    with pytest.raises(InvalidTrace) as caught:
        decode_snapshot(raw, EVENTS)
    assert "not a memory snapshot" in str(caught.value)
    assert reason in str(caught.value)


def test_an_unreadable_file_has_a_reason_instead_of_an_error_so_that_other_ranks_are_analysed(tmp_path: Path) -> None:
    found = analyse_snapshot_file(write_snapshot(tmp_path / "a.pickle", {"segments": [], "device_traces": [[]]}))
    assert isinstance(found, UnreadableSnapshot)
    assert found.reason == "the snapshot is empty: no memory of a GPU is in use, and no history"
    missing = analyse_snapshot_file(tmp_path / "missing.pickle")
    assert isinstance(missing, UnreadableSnapshot)
    assert "No such file" in missing.reason


def test_a_list_of_segments_and_the_format_before_torch_2_are_read() -> None:
    frame = {"filename": "a.py", "line": 3, "name": "f"}
    block = {"size": 1024, "state": "active_allocated", "history": [{"addr": 0, "real_size": 1000, "frames": [frame]}]}
    old = [{"device": 1, "address": 4096, "total_size": 2048, "stream": 0, "blocks": [block]}]
    (device,) = decode_snapshot(old, EVENTS).devices
    assert device.device == 1
    assert [(b.address, b.requested, b.stack) for b in device.segments[0].blocks] == [(4096, 1000, 1)]


def test_the_events_of_every_device_are_kept_apart(snapshot: dict[str, Any]) -> None:
    events = snapshot["device_traces"][0]
    snapshot["device_traces"] = [[], events, [], events[:5]]
    assert [(d.device, len(d.events)) for d in decode_snapshot(snapshot, EVENTS).devices] == [
        (0, 0),
        (1, len(events)),
        (3, 5),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_snapshot_is_analysed_or_refused_with_a_reason(tmp_path: Path, seed: int) -> None:
    whole = pickle.dumps(train(ModelAllocator(), 1, Training(layers=(1 << 20,))).snapshot())
    chance = random.Random(seed)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path = tmp_path / "a.pickle"
        path.write_bytes(damaged)
        found = analyse_snapshot_file(path, MemoryLimits(memory_bytes=1 << 30))
        if isinstance(found, UnreadableSnapshot):
            assert found.reason
        else:
            assert all(sum(one.memory.peak.by_category.values()) == one.memory.peak.in_use_bytes for one in found)


def test_an_error_never_contains_a_large_or_deeply_nested_value() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidTrace) as caught:
        decode_snapshot({"segments": [{"address": deep, "blocks": []}], "device_traces": []}, EVENTS)
    assert len(str(caught.value)) < 500
