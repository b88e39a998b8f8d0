"""Choices of the planner: always valid, the fastest that fits, and refusals whose advice works."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster_components.trainer.config import TrainConfig
from muster_components.trainer.errors import InputError
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.parallel.spec import parse_parallel
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.planning.candidates import valid_plans
from muster_components.trainer.planning.command import planner_for, print_plan
from muster_components.trainer.planning.devices import GIB, GPU_KINDS, GpuKind, gpu_kind, parse_device
from muster_components.trainer.planning.planner import Planner, Prediction

pytestmark = pytest.mark.slow  # imports torch

H100 = parse_device("h100")
MODEL = ("--model", "gpt:1m", "--data", "unused", "--seq_len", "64", "--global_batch", "64")
AUTO = (*MODEL, "--parallel", "auto")


def config_of(*flags: str) -> TrainConfig:
    return parse_train_config(flags, {})


def host(world_size: int) -> HostCapabilities:
    return HostCapabilities(device="cuda", world_size=world_size, has_compiler=True, has_bf16=True)


def with_memory(gib: float) -> GpuKind:
    return dataclasses.replace(H100, memory_bytes=int(gib * GIB))


_planners: dict[tuple[object, ...], Planner] = {}


def planner(world_size: int, *flags: str, device: GpuKind = H100, gpus_per_host: int = 8) -> Planner:
    """One planner for each model, since measuring it takes seconds."""
    config = config_of(*flags)
    key = (config.model, config.data.seq_len)
    if key not in _planners:
        _planners[key], _, _ = planner_for(config, host(world_size), device, gpus_per_host)
    made = _planners[key]
    made.host, made.device, made.gpus_per_host = host(world_size), device, gpus_per_host
    return made


def total(prediction: Prediction) -> float:
    return prediction.step_s


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    world_size=st.sampled_from((1, 2, 4, 8, 16, 64)),
    global_batch=st.integers(1, 96),
    gpus_per_host=st.sampled_from((1, 4, 8)),
    gib=st.sampled_from((3.0, 24.0, 79.0)),
)
def test_auto_is_valid_for_any_number_of_ranks(
    world_size: int, global_batch: int, gpus_per_host: int, gib: float
) -> None:
    flags = ("--model", "gpt:1m", "--data", "unused", "--seq_len", "64", "--parallel", "auto")
    config = config_of(*flags, "--global_batch", str(global_batch))
    made = planner(world_size, *flags, device=with_memory(gib), gpus_per_host=gpus_per_host)
    if not made.predictions(config):
        assert global_batch < world_size  # too few samples for every mesh
        return
    prediction = made.choose(config)
    mesh = prediction.plan.mesh
    assert parse_parallel(str(mesh) or "fsdp").shape(world_size) == mesh
    assert mesh.world_size == world_size
    assert prediction.needed <= gib * GIB
    # The trainer accepts the chosen flags, and makes the same plan of them.
    base = [flag for flag in flags if flag not in ("--parallel", "auto")]
    again = resolve_plan(
        config_of(*base, "--global_batch", str(global_batch), *prediction.flag_list()), host(world_size)
    )
    assert (again.mesh, again.micro_batch, again.schedule) == (
        mesh,
        prediction.plan.micro_batch,
        prediction.plan.schedule,
    )


@pytest.mark.parametrize(
    "flags", [("--reshard", "never"), ("--reshard", "always"), ("--symmetric_memory",), ("--offload_activations",)]
)
def test_auto_considers_only_plans_that_the_trainer_accepts(flags: tuple[str, ...]) -> None:
    config = config_of(*AUTO, *flags)
    plans = valid_plans(config, host(4), gpus_per_host=8, allows_padding=True)
    assert plans
    for chosen in plans:
        given = [*MODEL, *flags, "--parallel", str(chosen.mesh), "--pipeline_schedule", chosen.schedule.name]
        config_of(*(given if chosen.mesh.pp > 1 else given[:-2]))


def test_the_choice_is_the_fastest_that_fits() -> None:
    config, made = config_of(*AUTO), planner(4, *AUTO)
    plans = valid_plans(config, host(4), gpus_per_host=8, allows_padding=True)
    everything = [prediction for plan in plans if (prediction := made.predict(plan)) is not None]
    by_memory = sorted(prediction.needed for prediction in everything)
    memory = int(by_memory[len(by_memory) // 2])
    made.device = dataclasses.replace(H100, memory_bytes=memory)
    fitting = [prediction for prediction in everything if prediction.needed <= memory]
    assert 0 < len(fitting) < len(everything)
    assert total(made.choose(config)) == min(map(total, fitting))
    kinds = {(bool(plan.mesh.tp > 1), bool(plan.mesh.pp > 1), plan.mesh.data) for plan in plans}
    assert kinds >= {(False, False, "fsdp"), (False, False, "ddp"), (True, False, "fsdp"), (False, True, "fsdp")}


def with_memory_of(share: float, *flags: str) -> Prediction:
    """For two GPUs that have this share of the memory that the plan needs."""
    made, plan = planner(2, *LARGE, *flags), resolve_plan(config_of(*LARGE, *flags), host(2))
    first = made.predict(plan)
    assert first is not None
    made.device = dataclasses.replace(H100, memory_bytes=int(share * first.needed))
    found = made.predict(plan)
    assert found is not None
    return found


def test_sharded_plans_that_leave_the_allocator_little_memory_take_longer() -> None:
    wide, tight, large = (with_memory_of(share, "--parallel", "fsdp") for share in (1.2, 1.05, 0.95))
    assert (wide.fits, wide.is_tight, tight.fits, tight.is_tight) == (True, False, True, True)
    assert wide.step_s == wide.time.total
    assert tight.step_s == pytest.approx(1.19 * wide.step_s)
    assert (large.fits, large.is_tight) == (False, False)


def test_plans_that_keep_gathered_weights_need_less_beside_their_tensors() -> None:
    kept = with_memory_of(1.05, "--parallel", "fsdp", "--reshard", "never")
    assert (kept.fits, kept.is_tight, kept.reshards) == (True, False, False)


def test_auto_keeps_gathered_weights_until_backward_if_there_is_memory_for_them() -> None:
    config = config_of(*LARGE, "--parallel", "auto")
    made = planner(2, *LARGE, "--parallel", "auto")
    roomy = [p for p in made.predictions(config) if str(p.plan.mesh) == "fsdp=2" and p.plan.micro_batch == 1]
    by_flags = {prediction.flags: prediction for prediction in roomy}
    for flags, freed in by_flags.items():
        if freed.reshards:
            kept = by_flags[f"{flags} --reshard=never"]
            assert kept.time.communication < freed.time.communication
            assert kept.memory.gathered > freed.memory.gathered
    assert any(prediction.reshards for prediction in roomy)
    given = config_of(*LARGE, "--parallel", "auto", "--reshard", "always")
    assert all(p.plan.config.parallel.reshard is True for p in made.predictions(given))
    for gib, reshard in ((200.0, False), (78.0, None)):  # 72 GiB are the least with freed weights, 85 with kept ones
        made.device = with_memory(gib)
        fitting = [p for p in made.predictions(config) if str(p.plan.mesh) == "fsdp=2" and p.fits]
        assert min(fitting, key=total).plan.config.parallel.reshard is reshard


def test_a_given_value_of_reshard_is_among_the_flags_and_no_plan_that_it_does_not_suit_is_predicted() -> None:
    for value in ("never", "always"):
        config = config_of(*LARGE, "--parallel", "auto", "--reshard", value)
        found = planner(2, *LARGE).predictions(config)
        assert found
        for prediction in found:
            assert prediction.plan.mesh.data != "ddp"
            assert f"--reshard={value}" in prediction.flag_list()
            resolve_plan(config_of(*LARGE, *prediction.flag_list()), host(2))


def test_weights_that_tensor_parallelism_splits_and_those_of_stages_are_freed_as_by_the_trainer() -> None:
    """It compares all weights of a module, before they are split, with a limit."""
    found = {}
    cases = [("tp=2,fsdp=2", "auto"), *(("pp=2,fsdp=2", value) for value in ("always", "never", "auto"))]
    for spec, reshard in cases:
        flags = (*LARGE, "--parallel", spec, "--reshard", reshard)
        prediction = planner(4, *LARGE).predict(resolve_plan(config_of(*flags), host(4)))
        assert prediction is not None
        found[spec, reshard] = prediction
    assert [prediction.reshards for prediction in found.values()] == [True, True, False, False]
    always, never, auto = (found["pp=2,fsdp=2", value].time.communication for value in ("always", "never", "auto"))
    assert found["pp=2,fsdp=2", "always"].needed == found["pp=2,fsdp=2", "never"].needed  # all are kept in backward
    assert always > 2 * never  # 8 micro-batches gather the blocks' weights 9 times
    assert auto == never


def test_a_plan_that_fits_only_with_freed_weights_is_advised_to_free_them() -> None:
    made = planner(2, *LARGE)
    flags = (*LARGE, "--parallel", "fsdp", "--micro_batch", "1", "--activation_checkpointing", "full")
    freed, kept = (resolve_plan(config_of(*flags, "--reshard", value), host(2)) for value in ("always", "never"))
    needed = [prediction.needed for plan in (freed, kept) if (prediction := made.predict(plan)) is not None]
    made.device = dataclasses.replace(H100, memory_bytes=int(sum(needed) / 2))
    prediction = made.predict(kept)
    assert prediction is not None
    assert [change for change, _ in made.fitting_changes(prediction)] == ["--reshard auto"]


def test_a_plan_that_fits_only_with_freed_weights_that_auto_keeps_is_advised_and_chosen_with_reshard_always() -> None:
    """Auto keeps those below 4 GiB."""
    model = (*LARGE, "--model_args", "layers=2")
    made = planner(2, *model)
    flags = (*model, "--parallel", "fsdp", "--micro_batch", "1", "--activation_checkpointing", "full")
    freed, kept = (
        made.predict(resolve_plan(config_of(*flags, *more), made.host)) for more in (("--reshard", "always"), ())
    )
    assert freed is not None
    assert kept is not None
    assert not kept.reshards
    made.device = dataclasses.replace(H100, memory_bytes=int((freed.needed + kept.needed) / 2))
    for reshard in ((), ("--reshard", "never")):
        refused = made.predict(resolve_plan(config_of(*flags, *reshard), made.host))
        assert refused is not None
        assert "--reshard always" in [change for change, _ in made.fitting_changes(refused)]
    chosen = made.predictions(config_of(*model, "--parallel", "auto", "--micro_batch", "1"))
    of_mesh = [p for p in chosen if str(p.plan.mesh) == "fsdp=2" and p.fits]
    assert {p.plan.config.parallel.reshard for p in of_mesh} == {True}


def test_pipelines_without_sharding_are_not_tight() -> None:
    exact = with_memory_of(1.01, "--parallel", "pp=2")
    assert (exact.fits, exact.is_tight) == (True, False)


def test_float8_takes_less_time_and_gathers_blocks_in_half_the_bytes_of_bf16() -> None:
    flags = ("--model", "gpt:124m", "--data", "unused", "--seq_len", "512", "--global_batch", "64")
    made = planner(2, *flags)
    made.host = dataclasses.replace(made.host, has_float8=True)
    found = {}
    for recipe in ("none", "tensorwise", "rowwise"):
        prediction = made.predict(resolve_plan(config_of(*flags, "--float8", recipe, "--reshard", "never"), made.host))
        assert prediction is not None
        found[recipe] = prediction
    bf16, tensorwise, rowwise = found.values()
    # Attention, head and what float8 adds are not in it; its peak is twice that of bf16.
    for prediction in (tensorwise, rowwise):
        assert 0.5 < prediction.time.matmuls / bf16.time.matmuls < 0.6
        assert prediction.time.attention == bf16.time.attention
    assert 0.5 < tensorwise.memory.gathered / bf16.memory.gathered < 0.6
    assert rowwise.memory.gathered == bf16.memory.gathered
    assert tensorwise.time.communication < bf16.time.communication == rowwise.time.communication


def test_offload_leaves_few_activations_on_the_gpu_and_takes_the_time_that_copies_cannot_hide() -> None:
    flags = ("--model", "gpt:124m", "--data", "unused", "--seq_len", "512", "--global_batch", "64")
    made = planner(2, *flags)
    found = []
    for more in ((), ("--offload_activations",)):
        prediction = made.predict(resolve_plan(config_of(*flags, "--no_cuda_graph", *more), made.host))
        assert prediction is not None
        found.append(prediction)
    kept, moved = found
    assert moved.memory.activations < 0.35 * kept.memory.activations
    assert moved.memory.optimizer == kept.memory.optimizer
    assert "--offload_activations" in moved.flag_list()
    assert kept.time.offload == 0.0 < moved.time.offload
    made.device = dataclasses.replace(H100, host_link=1e15)
    prediction = made.predict(moved.plan)
    assert prediction is not None
    assert prediction.time.offload == 0.0


def test_float8_is_not_planned_for_gpus_without_it() -> None:
    with pytest.raises(InputError, match="--float8 rowwise requires GPUs of compute"):
        print_plan(config_of(*MODEL, "--float8", "rowwise", "--plan", "1x1", "--device", "a100"))


@pytest.mark.parametrize("mesh", ["tp=2", "pp=2", "fsdp=2"])
def test_a_mesh_that_does_not_fit_the_planned_gpus_is_refused_with_both_numbers(mesh: str) -> None:
    expected = r"--plan 1x3 has 3 ranks, one for each GPU: --parallel \S+ needs (a multiple of )?2 ranks; got 3"
    with pytest.raises(InputError, match=expected):
        print_plan(config_of(*MODEL, "--parallel", mesh, "--plan", "1x3", "--device", "h100"))


def test_planning_reports_each_slow_step_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(config_of(*MODEL, "--parallel", "auto", "--plan", "1x1", "--device", "h100", "--json"))
    printed = capsys.readouterr()
    plans = len(json.loads(printed.out))
    lines = [line for line in printed.err.splitlines() if line.startswith("plan: ")]
    variants = "some of them also with --reshard never or always"
    assert lines[0] == f"plan: predicting memory and step time of {plans} plans, {variants} ..."
    assert lines[1] == "plan: measuring gpt:1m on tensors without values (compiled, bf16) ..."


def test_hosts_are_the_shards_of_hsdp() -> None:
    made = planner(16, *AUTO)
    meshes = {str(prediction.plan.mesh) for prediction in made.predictions(config_of(*AUTO))}
    assert "hsdp=2x8" in meshes
    assert "hsdp=8x2" not in meshes


def test_choices_that_are_given_are_kept() -> None:
    flags = (*AUTO, "--micro_batch", "4", "--activation_checkpointing", "full")
    chosen = planner(4, *flags).choose(config_of(*flags))
    assert (chosen.plan.micro_batch, chosen.plan.config.parallel.recompute) == (4, "full")
    fixed = (*MODEL, "--parallel", "fsdp=4", "--micro_batch", "auto")
    chosen = planner(4, *fixed).choose(config_of(*fixed))
    assert (str(chosen.plan.mesh), chosen.plan.config.parallel.recompute) == ("fsdp=4", "none")
    assert chosen.plan.micro_batch == 16  # of 64 in 4 ranks: all at once has the fewest launches


LARGE = (
    "--model",
    "llama:8b",
    "--vocab_size",
    "128256",
    "--data",
    "unused",
    "--seq_len",
    "8192",
    "--global_batch",
    "16",
)


def test_a_plan_that_cannot_fit_is_refused_with_changes_that_make_it_fit() -> None:
    config = config_of(*LARGE)
    made = planner(8, *LARGE)
    plan = resolve_plan(config, host(8))
    small = dataclasses.replace(H100, memory_bytes=60 * GIB)
    made.device = small
    with pytest.raises(
        InputError, match=r"needs 10\d GiB per GPU, 60 available .*; fits with --activation_check"
    ) as error:
        made.check(plan)
    text = str(error.value)
    prediction = made.predict(plan)
    assert prediction is not None
    assert not prediction.fits
    changes = [change for change, _ in made.fitting_changes(prediction)]
    assert changes
    assert all(change in text for change in changes)
    for change in changes:
        flags = change.partition(" (on ")[0].split()
        changed = made.predict(resolve_plan(config_of(*LARGE, *flags), host(8)))
        assert changed is not None
        assert changed.needed <= small.memory_bytes
    assert "GPUs)" not in text  # more of them are the last resort


def test_more_gpus_are_the_advice_if_nothing_smaller_fits() -> None:
    made = planner(2, *LARGE, device=with_memory(40))
    with pytest.raises(InputError, match=r"fits with .*--parallel fsdp=(\d+) \(on \1 GPUs\)$"):
        made.check(resolve_plan(config_of(*LARGE), host(2)))


def test_a_plan_within_the_tolerance_is_not_refused() -> None:
    made = planner(8, *LARGE)
    plan = resolve_plan(config_of(*LARGE), host(8))
    prediction = made.predict(plan)
    assert prediction is not None
    made.device = dataclasses.replace(H100, memory_bytes=int(0.95 * prediction.needed))
    checked = made.check(plan)
    assert checked is not None
    assert not checked.fits


def test_kinds_of_gpus_are_found_by_name_and_flag() -> None:
    assert all(gpu_kind(f"NVIDIA {kind.name}") == kind and parse_device(kind.flag) == kind for kind in GPU_KINDS)
    assert all(kind.flops > 1e14 for kind in GPU_KINDS)
    assert gpu_kind("NVIDIA H100 80GB HBM3", 5) == dataclasses.replace(H100, memory_bytes=5)
    assert gpu_kind("NVIDIA GeForce GTX 1080") is None
    assert parse_device("l40s:48GiB").memory_bytes == 48 * GIB
    for text in ("h101", "h100:", "h100:80", "h100:0GiB", ""):
        with pytest.raises(InputError, match="--device must be"):
            parse_device(text)


@pytest.mark.parametrize("text", ["8", "0x8", "2x", "x"])
def test_the_layout_is_checked(text: str) -> None:
    with pytest.raises(InputError, match="--plan must be NODESxGPUS"):
        config_of("--model", "gpt:1m", "--plan", text)


def test_data_is_required_unless_a_plan_is_printed() -> None:
    with pytest.raises(InputError, match="required: --data"):
        config_of("--model", "gpt:1m")
    assert config_of("--model", "gpt:1m", "--plan", "2x8").planning.layout == (2, 8)
