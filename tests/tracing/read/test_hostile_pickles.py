"""No pickle makes a reader of untrusted pickles work for longer than its size takes."""

from __future__ import annotations

import pickle
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tracing.flight_recorder import dump, entry
from tests.tracing.memory_snapshots import ModelAllocator, Training, train

from muster.errors import InvalidTrace
from muster.tracing.memory import analyse_memory, memory_report
from muster.tracing.read.flight_recorder import read_dump
from muster.tracing.read.restricted_pickle import read_pickle

PREFIX = b"\x80\x04}\x94\x8c\x08segments\x94]\x94s"
NESTED = b"K\x00\x85\x94" + b"".join(b"h%c\x86\x94" % level for level in range(3, 64))


def item(key: bytes) -> bytes:
    """A dict with a key in `segments` of a snapshot, or beside the entries of a dump."""
    return PREFIX + key + b"Ns."


BOMBS = {
    "nested tuples as a key": item(NESTED),
    "nested tuples of a duplicated item as a key": item(b"K\x00\x85" + b"2\x86" * 60),
    "a set of nested tuples": item(b"N0\x8f(" + NESTED + b"\x900N"),
    "a frozenset of nested tuples": item(b"N0(" + NESTED + b"\x910N"),
    "a dict of nested tuples from the stack": item(b"N0(" + NESTED + b"Nd0N"),
    "a large integer that is a key a million times": item(
        b"N0}(\x8b\x40\x42\x0f\x00" + b"\x01" * 1_000_000 + b"\x94N" + b"h\x03N" * 300_000 + b"u0N"
    ),
    "a long string that is compared a million times": item(
        b"N0}(" + 2 * (b"X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"\x94N") + b"h\x04N" * 300_000 + b"u0N"
    ),
}


def within_cpu_seconds(seconds: int, reader: str, path: Path) -> str:
    """The error of the reader, in a process that is killed after so much CPU time."""
    program = f"""
import sys
from pathlib import Path
from muster.errors import InvalidTrace
from muster.tracing.read.flight_recorder import read_dump
from muster.tracing.read.restricted_pickle import read_pickle
try:
    {reader}(Path(sys.argv[1]))
except InvalidTrace as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(path)]
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # noqa: E731
    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"ended with {ended.returncode}: {ended.stderr}"
    return ended.stdout


@pytest.mark.parametrize("reader", ["read_pickle", "read_dump"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_pickle_that_takes_long_to_read_is_refused_at_once(tmp_path: Path, bomb: str, reader: str) -> None:
    path = tmp_path / "rank-0.attempt-0.a.pickle"
    path.write_bytes(BOMBS[bomb])
    assert "must " in within_cpu_seconds(20, reader, path)


def test_the_end_of_a_frame_does_not_hide_opcodes_in_a_string(tmp_path: Path) -> None:
    """Python's unpickler drops the rest of a large frame when an opcode continues after it. The two bytes after `X`
    are the size of a string for the scan alone: to the unpickler the string is empty, and its text are opcodes."""
    hidden = b"0})\x940" + b"".join(b"h%c" % n + b"h%c" % n + b"\x86\x940" for n in range(62)) + b"h\x3eNs."
    size = (2 + len(hidden)).to_bytes(2, "little")
    frame = b"N" * 200_000 + b"X" + size
    path = tmp_path / "a.pickle"
    path.write_bytes(b"\x80\x04\x95" + len(frame).to_bytes(8, "little") + frame + bytes(4) + hidden + b"N.")
    assert "damaged" in within_cpu_seconds(20, "read_pickle", path)


@pytest.mark.parametrize("shared", ["shapes", "counts", "statuses"])
def test_a_dump_whose_entries_share_a_long_value_is_read_at_once(tmp_path: Path, shared: str) -> None:
    """Entry by entry, a dump of 1 MiB would take an hour, and the counts of its groups more memory than there is."""
    nothing, counts = [None] * 100_000, {f"b{number}": number for number in range(20_000)}
    shapes = [entry(number, input_sizes=nothing, output_dtypes=nothing) for number in range(3000)]
    groups = {f"{number}": {"ranks": [0], "entered": counts} for number in range(20_000)}
    content = {
        "shapes": dump(*shapes),
        "counts": dump() | {"muster": {"rank": 0, "groups": groups}},
        "statuses": dump()
        | {"muster": {"rank": 0, "groups": groups}, "pg_status": {f"{n}": {} for n in range(20_000)}},
    }[shared]
    path = tmp_path / "rank-0.attempt-0.a.pickle"
    path.write_bytes(pickle.dumps(content, protocol=2))
    assert within_cpu_seconds(10, "read_dump", path) == ""


def test_integers_that_collide_are_refused_as_keys_of_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.attempt-0.a.pickle"
    path.write_bytes(pickle.dumps(dump() | {"more": {number << 40: None for number in range(2000)}}))
    with pytest.raises(InvalidTrace, match="keys that are short strings, or few integers; got int"):
        read_dump(path)
    path.write_bytes(pickle.dumps(dump(entry(1)) | {"more": {7: None}}))
    read_dump(path)


SCALARS: list[Callable[[random.Random], object]] = [
    lambda rng: rng.choice((None, True, False, 0.5, "", "name", "é" * 40)),
    lambda rng: rng.choice((-1, 1)) * rng.getrandbits(rng.choice((1, 8, 16, 31, 32, 63))),
    lambda rng: (rng.getrandbits(8), rng.getrandbits(40)),
    lambda rng: "x" * rng.choice((1, 254, 255, 256, 40_000)),
]


def value(rng: random.Random, depth: int) -> object:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(SCALARS)(rng)
    some = [value(rng, depth - 1) for _ in range(rng.randint(0, 5))]
    return some if rng.random() < 0.5 else {f"k{rng.getrandbits(4)}": one for one in some}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("seed", range(5))
def test_what_a_snapshot_may_contain_is_read_as_it_was_written(tmp_path: Path, protocol: int, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "a.pickle"
    content = {"segments": [value(rng, 5) for _ in range(400)], "device_traces": []}
    for pickler in (pickle.dumps, pickle._dumps):  # type: ignore[attr-defined]
        path.write_bytes(pickler(content, protocol))
        assert read_pickle(path) == content


def test_a_snapshot_of_many_chunks_is_read_as_it_was_written(tmp_path: Path) -> None:
    snapshot = train(ModelAllocator(), 1, Training()).snapshot()
    snapshot["device_traces"] = [[dict(event) for event in snapshot["device_traces"][0]] for _ in range(1500)]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert path.stat().st_size > 3 << 20
    assert read_pickle(path) == snapshot


def colliding_integers(count: int) -> bytes:
    """A pickle that stores integers, and uses the last one, which collides with `count` others, again and again."""
    mask, number, at = (1 << 20) - 1, (1 << 60) - 7, ((1 << 60) - 7) & ((1 << 20) - 1)
    met, rest = dict.fromkeys([at]), number
    while len(met) < count:
        rest >>= 5
        at = (at * 5 + rest + 1) & mask
        met[at] = None
    last = pickle.LONG1 + b"\x08" + number.to_bytes(8, "little") + b"N"
    keys = b"".join(b"J" + one.to_bytes(4, "little") + b"N" for one in met)
    return b"\x80\x04}(\x8c\x08segments]\x8c\x04more}(" + keys + last * 300_000 + b"uu."


def test_a_snapshot_that_takes_much_cpu_time_is_left_out_and_the_others_are_analysed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_report, "CPU_BASE_S", 2.0)
    monkeypatch.setattr(memory_report, "_BYTES_PER_CPU_S", 1 << 40)
    (tmp_path / "rank0.pickle").write_bytes(colliding_integers(400_000))
    (tmp_path / "rank1.pickle").write_bytes(pickle.dumps(train(ModelAllocator(), 1, Training()).snapshot()))
    report = analyse_memory(tmp_path, workers=1)
    assert [rank.rank for rank in report.ranks] == [1]
    assert [(one.file, one.reason[:38]) for one in report.skipped] == [
        ("rank0.pickle", "the process that read it was killed: t")
    ]
