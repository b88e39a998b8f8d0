"""What memory is used for, derived from where it is allocated and freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.tracing.memory_snapshots import (
    BACKWARD,
    FORWARD,
    INIT_STATE,
    INPUT,
    LEAK,
    MIB,
    PARAMETER,
    RECOMPUTE,
    SCRATCH,
    STEP,
    ZERO_GRAD,
    ModelAllocator,
    Stack,
    Training,
    native_frame,
    python_frame,
    train,
)

from muster.tracing.memory.categories import ORDER, categorise, stack_origins
from muster.tracing.memory.lifetimes import reconstruct_allocations
from muster.tracing.memory.snapshot import decode_snapshot

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
GATHER = [
    python_frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 220, "foreach_all_gather_copy_out"),
    python_frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 300, "unshard"),
    *FORWARD,
]
REDUCE = [
    python_frame(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 420, "foreach_reduce"),
    *BACKWARD,
]
ACCUMULATE = [native_frame("torch::autograd::AccumulateGrad::apply(tensors)"), *BACKWARD]


def categories(raw: dict[str, Any]) -> list[str]:
    """The category of each allocation, in the order of the recording, those before it last."""
    snapshot = decode_snapshot(raw, 1_000_000)
    (device,) = snapshot.devices
    allocations = reconstruct_allocations(device)
    found = categorise(snapshot, device, allocations, stack_origins(snapshot))
    assert len(found) == len(allocations)
    return [str(ORDER[number]) for number in found]


def after(act: Callable[[ModelAllocator], object], *, native: bool = True) -> list[str]:
    allocator = ModelAllocator(native=native)
    act(allocator)
    return categories(allocator.snapshot())


def allocated_and_freed(stack: Stack, freed_in: Stack | None) -> Callable[[ModelAllocator], None]:
    """One allocation, which the next backward pass and zero_grad follow."""

    def act(allocator: ModelAllocator) -> None:
        address = allocator.alloc(MIB, stack)
        if freed_in is BACKWARD:
            allocator.free(address, BACKWARD)
        allocator.free(allocator.alloc(MIB, BACKWARD), BACKWARD)
        allocator.free(allocator.alloc(MIB, STEP), STEP)
        if freed_in is not None and freed_in is not BACKWARD:
            allocator.free(address, freed_in)

    return act


@pytest.mark.parametrize(
    ("stack", "freed_in", "category"),
    [
        (PARAMETER, None, "parameter"),
        (INPUT, FORWARD, "input"),
        (FORWARD, BACKWARD, "activation"),
        (FORWARD, ZERO_GRAD, "activation"),  # held by a variable of the program until the next step
        (FORWARD, None, "activation"),
        (LEAK, BACKWARD, "activation"),
        (LEAK, ZERO_GRAD, "temporary"),
        (LEAK, None, "unknown"),
        (RECOMPUTE, BACKWARD, "activation"),
        (BACKWARD, BACKWARD, "temporary"),
        (BACKWARD, ZERO_GRAD, "gradient"),
        (BACKWARD, None, "gradient"),
        (ACCUMULATE, None, "gradient"),
        (INIT_STATE, None, "optimizer_state"),
        (STEP, ZERO_GRAD, "temporary"),
        (GATHER, FORWARD, "communication"),
        (REDUCE, BACKWARD, "communication"),
        (REDUCE, ZERO_GRAD, "gradient"),  # FSDP2's sharded gradient is a view of the output of the reduce-scatter
    ],
)
def test_the_category_follows_from_where_memory_is_allocated_and_freed(
    stack: Stack, freed_in: Stack | None, category: str
) -> None:
    assert after(allocated_and_freed(stack, freed_in))[0] == category


def test_memory_that_forward_allocates_and_frees_is_temporary() -> None:
    assert after(lambda allocator: allocator.free(allocator.alloc(MIB, SCRATCH), SCRATCH)) == ["temporary"]


def test_memory_that_backward_holds_when_it_runs_out_of_memory_is_temporary_unless_it_is_a_gradient() -> None:
    def act(allocator: ModelAllocator) -> None:
        allocator.alloc(MIB, ACCUMULATE)
        allocator.alloc(MIB, BACKWARD)

    assert after(act) == ["gradient", "temporary"]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_the_categories_of_a_training_are_found_with_and_without_frames_of_c_plus_plus(
    native: bool, recompute: bool
) -> None:
    training = Training(layers=(3 * MIB,), activation=5 * MIB, scratch=7 * MIB, recompute=recompute)
    allocator = train(ModelAllocator(native=native), 2, training)
    snapshot = decode_snapshot(allocator.snapshot(), 1_000_000)
    (device,) = snapshot.devices
    allocations = reconstruct_allocations(device)
    found = categorise(snapshot, device, allocations, stack_origins(snapshot))
    sizes: dict[str, set[int]] = {}
    for number, size in zip(found, allocations.size.tolist(), strict=True):
        sizes.setdefault(ORDER[number], set()).add(size)
    if recompute and native:
        assert 5 * MIB in sizes["activation"]
    if not recompute:
        assert sizes["activation"] == {5 * MIB}
    assert sizes["parameter"] == {3 * MIB}
    assert sizes["optimizer_state"] == {3 * MIB}
    assert sizes["gradient"] == {3 * MIB}
    assert 7 * MIB in sizes["temporary"]
    assert sizes.get("input", set()) == ({MIB // 2} if native else set())


def test_memory_from_before_the_recording_is_known_by_who_frees_it_or_unknown() -> None:
    allocator = ModelAllocator(recording=False)
    activation, gradient, _ = (allocator.alloc(MIB, LEAK) for _ in range(3))
    allocator.recording = True
    allocator.free(activation, BACKWARD)
    allocator.free(gradient, ZERO_GRAD)
    assert categories(allocator.snapshot()) == ["activation", "gradient", "unknown"]


@pytest.mark.parametrize("native", [True, False])
def test_parameters_and_states_from_before_the_recording_have_the_sizes_of_the_gradients(native: bool) -> None:
    training = Training(layers=(3 * MIB, 3 * MIB, 4 * MIB), activation=5 * MIB, scratch=7 * MIB)
    raw = train(ModelAllocator(native=native), 4, training, record_from_step=2).snapshot()
    found = Counter(categories(raw))
    assert (found["parameter"], found["optimizer_state"], found["unknown"]) == (3, 6, 0)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([2] * 2 + [4] * 4, {"parameter": 2, "optimizer_state": 4}),  # parameters in half precision
        ([2] * 2 + [4] * 6, {"parameter": 2, "optimizer_state": 4, "unknown": 2}),  # copies in half precision
        ([2] * 4, {"parameter": 2, "optimizer_state": 2}),  # momentum
        ([2] * 2, {"unknown": 2}),  # copies, or parameters: nothing else is there
        ([2] * 5, {"unknown": 5}),
        ([2], {"unknown": 1}),
        ([6] * 3, {"unknown": 3}),
    ],
)
def test_what_numbers_and_sizes_do_not_prove_stays_unknown(before: list[int], expected: dict[str, int]) -> None:
    allocator = ModelAllocator(recording=False)
    for size in before:
        allocator.alloc(size * MIB, PARAMETER)
    allocator.recording = True
    gradients = [allocator.alloc(2 * MIB, ACCUMULATE) for _ in range(2)]
    for gradient in gradients:
        allocator.free(gradient, ZERO_GRAD)
    assert Counter(categories(allocator.snapshot())) == {"gradient": 2} | expected


@pytest.mark.parametrize(
    ("states", "gradients", "expected"),
    [
        (2, [4, 7], {"parameter": 3, "optimizer_state": 6}),
        (1, [4, 7], {"parameter": 3, "optimizer_state": 3}),
        (2, [4, 7.1], {"parameter": 3, "optimizer_state": 6}),  # padding
        (2, [4, 9], {"unknown": 9}),
        (2, [4], {"unknown": 9}),
    ],
)
def test_shards_whose_gradients_are_reduced_together_are_known_by_the_sums(
    states: int, gradients: list[float], expected: dict[str, int]
) -> None:
    allocator = ModelAllocator(recording=False)
    for size in (3, 1, 7):
        for _ in range(1 + states):
            allocator.alloc(size * MIB, PARAMETER)
    allocator.recording = True
    for gradient in [allocator.alloc(round(size * MIB), REDUCE) for size in gradients]:
        allocator.free(gradient, ZERO_GRAD)
    assert Counter(categories(allocator.snapshot())) == {"gradient": len(gradients)} | expected


def test_parameters_that_a_stack_names_are_not_found_again_among_equal_allocations() -> None:
    allocator = ModelAllocator(recording=False)
    for _ in range(4):
        allocator.alloc(2 * MIB, LEAK)
    allocator.recording = True
    for _ in range(2):
        allocator.alloc(2 * MIB, PARAMETER)
    for gradient in [allocator.alloc(2 * MIB, ACCUMULATE) for _ in range(2)]:
        allocator.free(gradient, ZERO_GRAD)
    assert Counter(categories(allocator.snapshot())) == {"parameter": 2, "gradient": 2, "unknown": 4}


def test_frees_without_frames_are_those_of_the_phase_in_which_they_happen() -> None:
    allocator = ModelAllocator()
    saved, kept = allocator.alloc(MIB, FORWARD), allocator.alloc(MIB, SCRATCH)
    allocator.free(kept, SCRATCH)
    gradient = allocator.alloc(MIB, BACKWARD)
    allocator.free(saved, BACKWARD)
    allocator.free(allocator.alloc(MIB, STEP), STEP)
    allocator.free(gradient, ZERO_GRAD)
    raw = allocator.snapshot()
    for event in raw["device_traces"][0]:
        if event["action"].startswith("free"):
            event["frames"] = []
    assert categories(raw) == ["activation", "temporary", "gradient", "temporary"]


def test_tensors_that_the_trainer_names_have_its_categories() -> None:
    allocator = ModelAllocator(recording=False)
    first, second, third = (allocator.alloc(2 * MIB, LEAK) for _ in range(3))
    allocator.recording = True
    raw = allocator.snapshot()
    raw["muster"] = {
        "tensors": [
            {"category": "parameter", "address": first, "bytes": 2 * MIB},
            {"category": "optimizer_state", "address": second + MIB, "bytes": MIB},  # a view into an allocation
            {"category": "parameter", "address": third + 2 * MIB, "bytes": MIB},  # none is there
            {"category": "of a later version", "address": third, "bytes": MIB},
        ]
    }
    assert categories(raw) == ["parameter", "optimizer_state", "unknown"]
