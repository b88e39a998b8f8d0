"""The figures of GPU memory: equal to those of a modelled allocator, and to those of torch's own functions."""

from __future__ import annotations

import copy
import io
import random
import re
from contextlib import redirect_stdout
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.tracing.memory_snapshots import (
    BACKWARD,
    FORWARD,
    GIB,
    INPUT,
    KIB,
    LEAK,
    MIB,
    PARAMETER,
    ModelAllocator,
    OutOfDeviceMemory,
    Training,
    train,
)

from muster.tracing.memory.allocator import allocator_state, fragmentation, out_of_memory
from muster.tracing.memory.categories import categorise, stack_origins
from muster.tracing.memory.lifetimes import reconstruct_allocations, reserved_over_events
from muster.tracing.memory.places import Places
from muster.tracing.memory.segments import largest_free, segment_maps
from muster.tracing.memory.snapshot import decode_snapshot
from muster.tracing.memory.usage import DeviceUsage, peak, timeline

STACKS = (PARAMETER, FORWARD, BACKWARD, INPUT, LEAK)


def usage_of(raw: dict[str, Any]) -> DeviceUsage:
    snapshot = decode_snapshot(raw, 1_000_000)
    (device,) = snapshot.devices
    allocations = reconstruct_allocations(device)
    return DeviceUsage(
        device=device,
        allocations=allocations,
        category=categorise(snapshot, device, allocations, stack_origins(snapshot)),
        in_use=allocations.bytes_over_events(),
        reserved=reserved_over_events(device),
        places=Places(snapshot),
    )


def random_allocator(seed: int, actions: int = 400, capacity: int = GIB, unrecorded: int = 0) -> ModelAllocator:
    """An allocator after random allocations and frees on two streams, of which the first are not recorded."""
    chance = random.Random(seed)
    allocator = ModelAllocator(capacity)
    in_use: list[int] = []
    awaiting: list[int] = []
    for action in range(actions):
        allocator.recording = action >= unrecorded
        stack = chance.choice(STACKS)
        if chance.random() < 0.55 or not in_use:
            size = chance.choice(
                [chance.randint(1, 4 * KIB), chance.randint(1, 2 * MIB), chance.randint(MIB, 90 * MIB)]
            )
            try:
                in_use.append(allocator.alloc(size, stack, chance.choice([0, 0, 7])))
            except OutOfDeviceMemory:
                allocator.free(in_use.pop(), stack)
        else:
            address = in_use.pop(chance.randrange(len(in_use)))
            later = chance.random() < 0.2
            allocator.free(address, stack, in_use_by_other_stream=later)
            if later:
                awaiting.append(address)
        if awaiting and chance.random() < 0.3:
            allocator.complete(awaiting.pop(0), stack)
        if chance.random() < 0.02:
            allocator.empty_cache()
    allocator.recording = True
    return allocator


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("unrecorded", [0, 150])
def test_memory_in_use_and_reserved_after_each_event_are_those_of_the_allocator(seed: int, unrecorded: int) -> None:
    allocator = random_allocator(seed, unrecorded=unrecorded)
    usage = usage_of(allocator.snapshot())
    assert usage.allocations.unmatched == 0
    assert list(zip(usage.in_use[1:].tolist(), usage.reserved[1:].tolist(), strict=True)) == allocator.after_events
    highest = max(in_use for in_use, _ in allocator.after_events)
    assert peak(usage).in_use_bytes == max(highest, int(usage.in_use[0]))
    points = timeline(usage)
    assert max(point.in_use_bytes for point in points) == peak(usage).in_use_bytes
    assert all(sum(point.by_category.values()) == point.in_use_bytes for point in points)
    assert sum(peak(usage).by_category.values()) == peak(usage).in_use_bytes


@pytest.mark.parametrize("in_pool", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_memory_in_use_and_reserved_are_known_wherever_the_recording_begins(seed: int, in_pool: bool) -> None:
    """torch keeps the newest events (`max_entries`): any event may be the first one, as the end of a free is."""
    allocator = random_allocator(seed)
    raw = allocator.snapshot()
    if in_pool:
        raw["segments"] = [segment | {"segment_pool_id": (0, 1)} for segment in raw["segments"]]
    events = raw["device_traces"][0]
    for first in range(0, len(events), 37):
        usage = usage_of(raw | {"device_traces": [events[first:]]})
        found = list(zip(usage.in_use[1:].tolist(), usage.reserved[1:].tolist(), strict=True))
        assert (usage.allocations.unmatched, found) == (0, allocator.after_events[first:])


@pytest.mark.parametrize("seed", range(4))
def test_the_final_state_is_that_of_torchs_summary_of_segments(seed: int) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    raw = random_allocator(seed).snapshot()
    state = allocator_state(usage_of(raw).device.segments, expandable=False)
    # segsum counts memory that awaits another stream as free.
    summary = viz.segsum(copy.deepcopy(raw))
    shown = dict(re.findall(r"^total_(\w+): (\S+)", summary, re.MULTILINE))
    assert shown["reserved"] == repr(viz.Bytes(state.reserved_bytes))
    assert shown["allocated"] == repr(viz.Bytes(state.requested_bytes))
    internal = state.allocated_bytes - state.requested_bytes
    assert shown["free"] == repr(viz.Bytes(state.inactive_bytes + state.awaiting_free_bytes + internal))
    assert state.allocated_bytes == sum(map(viz.calc_active, raw["segments"]))
    assert state.reserved_bytes == state.allocated_bytes + state.awaiting_free_bytes + state.inactive_bytes


@pytest.mark.parametrize("seed", range(4))
def test_bytes_by_stack_at_the_end_are_those_of_torchs_flame_graph(seed: int) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    raw = random_allocator(seed).snapshot()
    expected: dict[str, int] = {}
    for line in viz.memory(copy.deepcopy(raw), format_flamegraph=str).splitlines():
        head, size = line.rsplit(" ", 1)
        _, state, stack = head.split(";", 2)
        if state != "inactive" and stack != "<gaps>":
            expected[stack] = expected.get(stack, 0) + int(size)
    usage = usage_of(raw)
    found: dict[str, int] = {}
    for (_, stack), (size, _) in usage.holders(len(usage.device.events) - 1).items():
        frames = [frame.rsplit("/", 1)[-1] for frame in reversed(usage.places.frames(stack))]
        found[";".join(frames)] = found.get(";".join(frames), 0) + size
    assert found == expected


@pytest.mark.parametrize("seed", range(4))
def test_what_the_recording_allocates_and_keeps_is_what_torchs_filter_of_freed_pairs_keeps(seed: int) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    raw = random_allocator(seed, unrecorded=150).snapshot()
    with redirect_stdout(io.StringIO()):
        kept = viz.filter_alloc_free_pairs(copy.deepcopy(raw))["device_traces"][0]
    expected = sorted(event["size"] for event in kept if event["action"] == "alloc")
    allocations = usage_of(raw).allocations
    not_freed = allocations.at_end & (allocations.start >= 0)
    awaiting = {b["address"] for s in raw["segments"] for b in s["blocks"] if b["state"] == "active_pending_free"}
    not_freed &= ~np.isin(allocations.address, list(awaiting))  # torch's filter drops them when they are requested
    assert sorted(allocations.size[not_freed].tolist()) == expected


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_free_piece_is_that_of_the_segments(seed: int) -> None:
    raw = random_allocator(seed).snapshot()
    usage = usage_of(raw)
    exact = max(b["size"] for s in raw["segments"] for b in s["blocks"] if b["state"] == "inactive")
    assert largest_free(usage, len(usage.device.events) - 1) == exact
    # Earlier, the same as a snapshot taken then: with the events since then undone.
    allocator = random_allocator(seed, actions=200)
    earlier = max(b["size"] for s in allocator.snapshot()["segments"] for b in s["blocks"] if b["state"] == "inactive")
    assert largest_free(usage, len(allocator.after_events) - 1) == earlier


@pytest.mark.parametrize("seed", range(4))
def test_the_maps_of_segments_have_the_sizes_and_free_pieces_of_the_snapshot(seed: int) -> None:
    raw = random_allocator(seed).snapshot()
    usage = usage_of(raw)
    maps = segment_maps(usage, len(usage.device.events) - 1)
    expected = sorted(
        (
            segment["total_size"],
            max([b["size"] for b in segment["blocks"] if b["state"] == "inactive"], default=0),
        )
        for segment in raw["segments"]
    )
    # The part of a block beyond its allocation, which was too small to be split off, counts as free here.
    found = sorted((one.size_bytes, one.largest_free_bytes) for one in maps)
    assert [size for size, _ in found] == [size for size, _ in expected]
    assert all(0 <= a - b <= MIB for (_, a), (_, b) in zip(found, expected, strict=True))
    for one in maps:
        assert one.in_use_bytes == sum(piece.bytes for piece in one.pieces) <= one.size_bytes
        assert all(a.offset_bytes + a.bytes <= b.offset_bytes for a, b in pairwise(one.pieces))


def test_the_map_of_a_segment_has_adjacent_memory_of_a_category_as_one_piece() -> None:
    allocator = ModelAllocator()
    first, *_ = (allocator.alloc(4 * MIB, stack) for stack in (LEAK, PARAMETER, PARAMETER, INPUT))
    allocator.free(first, LEAK)
    usage = usage_of(allocator.snapshot())
    (found,) = segment_maps(usage, len(usage.device.events) - 1)
    assert [(piece.offset_bytes, piece.bytes, piece.category) for piece in found.pieces] == [
        (4 * MIB, 8 * MIB, "parameter"),
        (12 * MIB, 4 * MIB, "input"),
    ]
    assert (found.size_bytes, found.in_use_bytes, found.largest_free_bytes) == (20 * MIB, 12 * MIB, 4 * MIB)


def fragmented(capacity: int) -> ModelAllocator:
    """Eight segments of 60 MiB hold 44 MiB each, so that 100 MiB do not fit into the 128 MiB that are free."""
    allocator = ModelAllocator(capacity)
    pieces = [allocator.alloc(60 * MIB, FORWARD) for _ in range(8)]
    for piece in pieces:
        allocator.free(piece, FORWARD)
    for _ in range(8):
        allocator.alloc(44 * MIB, FORWARD)
    with pytest.raises(OutOfDeviceMemory):
        allocator.alloc(100 * MIB, LEAK)
    return allocator


def test_an_allocation_that_fails_has_what_was_asked_for_and_what_was_free_in_which_pieces() -> None:
    usage = usage_of(fragmented(500 * MIB).snapshot())
    count, (failed,) = out_of_memory(usage)
    assert count == 1
    assert failed.requested_bytes == 100 * MIB
    assert failed.device_free_bytes == 20 * MIB
    assert failed.reserved_bytes == 480 * MIB
    assert failed.in_use_bytes == 352 * MIB
    assert failed.largest_free_bytes == 16 * MIB
    assert failed.place == "train.py:77 log"


def test_memory_that_was_never_in_use_together_is_unused_and_growth_beside_free_memory_is_counted() -> None:
    allocator = ModelAllocator()
    for address in [allocator.alloc(100 * MIB, FORWARD) for _ in range(3)]:
        allocator.free(address, FORWARD)
    allocator.alloc(250 * MIB, FORWARD)
    usage = usage_of(allocator.snapshot())
    found = fragmentation(usage, allocator_state(usage.device.segments, expandable=False))
    assert found.peak_reserved_bytes == 550 * MIB
    assert found.peak_in_use_bytes == 300 * MIB
    assert (found.unused_bytes, round(found.unused_ratio, 4)) == (250 * MIB, 0.4545)
    assert (found.growths, found.growth_bytes) == (1, 250 * MIB)
    assert found.largest_free_bytes == 100 * MIB


def test_free_memory_of_a_private_pool_is_not_unused() -> None:
    allocator = ModelAllocator()
    allocator.free(allocator.alloc(100 * MIB, FORWARD), FORWARD)
    allocator.alloc(300 * MIB, FORWARD)
    raw = allocator.snapshot()
    raw["segments"][0]["segment_pool_id"] = (0, 1)
    usage = usage_of(raw)
    state = allocator_state(usage.device.segments, expandable=False)
    assert [(pool.id, pool.reserved_bytes, pool.active_bytes) for pool in state.pools] == [
        ("0,0", 300 * MIB, 300 * MIB),
        ("0,1", 100 * MIB, 0),
    ]
    assert fragmentation(usage, state).unused_bytes == 0


def test_expandable_segments_that_grow_and_shrink_are_counted_as_reserved() -> None:
    base = 1 << 40
    events = [
        {"action": action, "addr": base + addr * MIB, "size": size * MIB, "stream": 0, "time_us": 1, "frames": []}
        for action, addr, size in (("segment_map", 0, 20), ("segment_map", 20, 40), ("segment_unmap", 0, 20))
    ]
    block = {
        "address": base + 20 * MIB,
        "size": 40 * MIB,
        "requested_size": 40 * MIB,
        "state": "inactive",
        "frames": [],
    }
    segment = {"address": base + 20 * MIB, "total_size": 40 * MIB, "is_expandable": True, "blocks": [block]}
    usage = usage_of({"segments": [segment], "device_traces": [events]})
    assert usage.reserved.tolist() == [0, 20 * MIB, 60 * MIB, 40 * MIB]
    assert largest_free(usage, 0) == 20 * MIB
    assert allocator_state(usage.device.segments, expandable=None).expandable is True


def test_the_peak_names_the_largest_holders_by_place_and_by_stack() -> None:
    training = Training(layers=(64 * MIB, 64 * MIB), activation=256 * MIB, scratch=8 * MIB)
    found = peak(usage_of(train(ModelAllocator(), 3, training).snapshot()))
    assert (found.by_place[0].place, found.by_place[0].category) == ("model.py:42 forward", "activation")
    assert (found.by_place[0].bytes, found.by_place[0].allocations) == (512 * MIB, 2)
    assert found.by_stack[0].frames[0] == "??:0:at::_ops::empty_memory_format::redispatch()"
    assert found.by_stack[0].program_frames == ("/home/user/model.py:42:forward", "/home/user/train.py:90:main")
    assert found.in_use_bytes == sum(holder.bytes for holder in found.by_place)


def test_without_a_history_the_peak_is_what_is_in_use_at_the_end() -> None:
    raw = train(ModelAllocator(), 2, Training()).snapshot()
    raw["device_traces"] = [[]]
    found = peak(usage_of(raw))
    assert found.event == -1
    assert found.in_use_bytes == 2 * 64 * MIB + 4 * 64 * MIB
    assert found.reserved_bytes == sum(segment["total_size"] for segment in raw["segments"])


def test_frees_that_are_missing_in_the_recording_are_counted() -> None:
    allocator = random_allocator(1)
    raw = allocator.snapshot()
    trace = raw["device_traces"][0]
    raw["device_traces"] = [[event for event in trace if event["action"] != "free_completed"]]
    assert usage_of(raw).allocations.unmatched > 0
