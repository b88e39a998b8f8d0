"""Dumps of torch's flight recorder: torch's own, and files that are none."""

from __future__ import annotations

import pickle
import re
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist
from tests.tracing.flight_recorder import batch, dump, entry, transfer, write_dumps

from muster.errors import InvalidTrace
from muster.tracing.read.flight_recorder import MAX_GROUPS, GroupProgress, RankCollectives, read_dump
from muster_components.trainer.flight_recorder import recorded_collectives


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def written(folder: Path, content: object, name: str = "rank-0.attempt-0.s1.pickle") -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(content))
    return path


def own_group(folder: Path) -> GroupProgress:
    """The group "mine" in a dump of this process, once all its collectives have ended."""
    deadline = time.monotonic() + 300
    while True:  # gloo's thread records the end after the call has returned
        found = read_dump(written(folder, recorded_collectives()))
        assert found.rank == 0
        own = next(one for one in found.groups if one.description == "mine")
        if own.pending is None or time.monotonic() > deadline:
            return own


@pytest.mark.usefixtures("one_rank")
def test_the_collectives_that_torch_recorded_are_read(tmp_path: Path) -> None:
    group = dist.new_group([0], group_desc="mine")
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(2, 3), group=group)
    first = own_group(tmp_path).entered
    for _ in range(6):
        dist.all_reduce(torch.ones(2, 3), group=group)
    own = own_group(tmp_path)
    assert (own.backend, own.ranks, own.entered, own.pending) == ("gloo", (0,), first + 6, None)
    newest = own.operations[-1]
    assert (newest.sequence, newest.name, newest.has_ended) == (first + 6, "all_reduce", True)
    assert newest.shapes == "['Float'] [[2, 3]] -> ['Float'] [[2, 3]]"


@pytest.mark.usefixtures("one_rank")
def test_a_dump_has_the_number_of_collectives_of_each_group_beside_the_ring(tmp_path: Path) -> None:
    group = dist.new_group([0], group_desc="mine")
    dist.all_reduce(torch.ones(3), group=group)
    content = recorded_collectives()
    content["entries"] = [one | {"record_id": 1000} for one in content["entries"] if one["process_group"][1] != "mine"]
    found = read_dump(written(tmp_path, content))
    own = next(one for one in found.groups if one.description == "mine")
    assert own.entered == own_group(tmp_path).entered > 0
    assert not own.is_overwritten


def test_without_a_process_group_a_dump_has_no_groups(tmp_path: Path) -> None:
    assert not dist.is_initialized()
    found = read_dump(written(tmp_path, recorded_collectives(), "rank-7.attempt-0.s1.pickle"))
    assert (found.rank, found.groups) == (7, ())


def test_the_rank_of_a_file_of_torchs_watchdog_is_in_its_name(tmp_path: Path) -> None:
    (path,) = write_dumps(tmp_path, {12: dump(entry(3), groups={"1": ("mesh_fsdp", "[4, 12]")})})
    found = read_dump(path)
    (group,) = found.groups
    assert (found.rank, group.ranks, group.entered, group.backend) == (12, (4, 12), 3, "nccl")
    renamed = path.rename(tmp_path / "dump")
    with pytest.raises(InvalidTrace, match="its name must end with the rank"):
        read_dump(renamed)


def test_a_group_that_got_the_name_of_a_destroyed_one_has_its_own_collectives_alone(tmp_path: Path) -> None:
    older = [entry(number, state="scheduled" if number == 9 else "completed") for number in range(1, 10)]
    newer = [entry(1, pg_id=3), entry(2, pg_id=3)]
    (path,) = write_dumps(tmp_path, {0: dump(*older, *newer, groups={"1": ("mesh_fsdp", "[0]")})})
    (group,) = read_dump(path).groups
    assert (group.entered, group.pending, [one.sequence for one in group.operations]) == (2, None, [1, 2])


def test_a_new_group_has_no_collective_of_a_destroyed_one_whatever_their_numbers(tmp_path: Path) -> None:
    """The destroyed group had one collective, or the first ones of the new group are not in the recorder any more."""
    members = {"1": ("mesh_fsdp", "[0]")}
    for newest in (1, 7):
        content = dump(entry(1, state="scheduled"), entry(newest, pg_id=3), groups=members)
        (path,) = write_dumps(tmp_path, {0: content})
        (group,) = read_dump(path).groups
        assert (group.entered, group.pending, len(group.operations)) == (newest, None, 1)


def test_a_new_group_has_no_transfer_of_a_destroyed_one(tmp_path: Path) -> None:
    old = transfer("nccl:send 0->1", 9, state="scheduled")
    new = transfer("nccl:send 0->1", 1, state="completed") | {"pg_id": 3}
    (path,) = write_dumps(tmp_path, {0: dump(old, new, groups={"2": ("mesh_pp", "[0, 1]")})})
    (group,) = read_dump(path).groups
    assert (group.transfers, [one.sequence for one in group.operations]) == ((), [1])


def test_a_batch_of_sends_and_receives_has_the_state_of_its_last_entry(tmp_path: Path) -> None:
    both = ("send 0->1", "recv 0<-1")
    batches = [*batch(*both, state="completed"), *batch(*both, sequence=2)]
    content = dump(*batches, groups={"2": ("pp", "[4, 6]")})
    (path,) = write_dumps(tmp_path, {4: content})
    (group,) = read_dump(path).groups
    assert group.entered == 0  # no collective
    assert group.pending is None
    assert [(one.sequence, one.name, one.peer, one.has_ended) for one in group.operations] == [
        (1, "recv 0<-1", 6, True), (1, "send 0->1", 6, True), (2, "recv 0<-1", 6, False), (2, "send 0->1", 6, False)
    ]  # fmt: skip
    assert [(one.sequence, one.name) for one in group.transfers] == [(2, "recv 0<-1"), (2, "send 0->1")]


def test_a_rank_waits_in_the_oldest_batch_and_in_the_oldest_other_transfer_with_each_rank(tmp_path: Path) -> None:
    names = ("recv 0<-1", "recv 0<-2", "recv 0<-1")
    single = [transfer(f"nccl:{name}", number, state="scheduled") for number, name in enumerate(names, 1)]
    batches = [*batch("send 0->1", sequence=4), *batch("send 0->1", sequence=5)]
    (path,) = write_dumps(tmp_path, {0: dump(*single, *batches, groups={"2": ("mesh_pp", "[0, 1, 2]")})})
    (group,) = read_dump(path).groups
    assert [(one.sequence, one.peer) for one in group.transfers] == [(1, 1), (2, 2), (4, 1)]
    (compact,) = read_dump(path).compact().groups
    assert compact.transfers == group.transfers


def test_the_last_entry_of_a_batch_is_of_the_batch_whether_or_not_torch_calls_it_p2p(tmp_path: Path) -> None:
    for is_p2p in (True, False):
        *parts, last = batch("recv 0<-1", state="completed", collectives=7)
        content = dump(
            entry(7, group=("2", "mesh_pp"), state="scheduled"),
            *parts,
            last | {"is_p2p": is_p2p},
            groups={"2": ("mesh_pp", "[0, 1]")},
        )
        (path,) = write_dumps(tmp_path, {0: content})
        (group,) = read_dump(path).groups
        assert group.transfers == ()
        assert group.pending is not None
        assert (group.entered, group.pending.name) == (7, "_all_gather_base")


def test_the_end_of_a_batch_whose_operations_are_not_in_the_recorder_any_more_is_left_out(tmp_path: Path) -> None:
    *_, last = batch("recv 0<-1", collectives=7)
    (path,) = write_dumps(tmp_path, {0: dump(last, entry(8, group=("2", "mesh_pp")))})
    (group,) = read_dump(path).groups
    assert ([one.sequence for one in group.operations], group.pending) == ([8], None)


class Call:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.folder,)


def test_nothing_in_a_dump_is_run(tmp_path: Path) -> None:
    path = written(tmp_path, dump(entry(1, more=Call(tmp_path / "made"))))
    with pytest.raises(InvalidTrace, match="which is not run"):
        read_dump(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "must be a dump of torch's flight recorder; it has no collectives"),
        ({"segments": []}, "must be a dump of torch's flight recorder; it has no collectives"),
        ({"entries": {"a": 1}}, "entries must be a list; got dict"),
    ],
)
def test_what_is_no_dump_is_refused_with_the_reason(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InvalidTrace, match=re.escape(message)):
        read_dump(written(tmp_path, content))


def test_a_truncated_dump_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, dump(entry(1)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InvalidTrace, match="truncated"):
        read_dump(path)


def test_invalid_values_of_a_dump_are_left_out(tmp_path: Path) -> None:
    config = {1: {}, "2": None, "3": {"ranks": 5}, "4": {"desc": 1, "ranks": "[x]"}, "5": {"ranks": [0, -1, "a", 2]}}
    bad = [
        None, {}, entry(1, process_group=None), entry(1, collective_seq_id="x"), entry(1, profiling_name="noname"),
        entry(-1), entry(1, retired="yes", time_created_ns="x") | {"state": 5},
    ]  # fmt: skip
    found = read_dump(written(tmp_path, {"entries": bad, "pg_config": config, "muster": {"rank": "x", "groups": [1]}}))
    (group, idle) = found.groups
    assert (group.name, group.entered, group.operations[0].has_ended) == ("1", 1, False)
    assert (idle.name, idle.ranks) == ("5", (0, 2))


def shared_lists(levels: int) -> list[Any]:
    """As a pickle a few bytes per level; as text ten times more with each level."""
    found: list[Any] = [0] * 10
    for _ in range(levels):
        found = [found] * 10
    return found


def contains_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"input_sizes": shared_lists(6)},
        {"input_sizes": contains_itself()},
        {"input_sizes": [1 << 70], "output_sizes": 1 << 70},
        {"input_dtypes": "\ud800", "profiling_name": "nccl:\ud800"},
        {"time_created_ns": 10**20},
    ],
)
def test_the_text_of_a_collective_is_short_and_can_be_sent_whatever_a_dump_contains(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = {"1": {"desc": "\ud800", "ranks": [0, 1.5, 2]}}
    path = written(tmp_path, {"entries": [entry(3, **changes)], "pg_config": config})
    tracemalloc.start()
    try:
        found = read_dump(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.groups[0].operations[0].shapes) <= 200
    assert peak < 4 << 20  # a buffer of 1 MiB reads the file
    assert msgspec.json.decode(msgspec.json.encode(found), type=RankCollectives) == found


def test_a_dump_with_an_integer_of_many_digits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="must have integers of at most 9 bytes; got 167"):
        read_dump(written(tmp_path, {"entries": [entry(3, time_created_ns=10**400)]}))


def test_the_groups_and_operations_that_are_kept_are_bounded(tmp_path: Path) -> None:
    many = [entry(number, state="scheduled") for number in range(5000)]
    many += [entry(1, group=(f"g{number}", "")) for number in range(1000)]
    found = read_dump(written(tmp_path, dump(*many)))
    assert len(found.groups) <= MAX_GROUPS
    (group,) = (one for one in found.groups if one.name == "1")
    assert [one.sequence for one in group.operations] == [0, 1, 2, 3, 4996, 4997, 4998, 4999]
    assert group.entered == 4999
