"""What is measured on tensors without values equals what real tensors need."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from muster_components.trainer.models.factory import FactoryModel
from muster_components.trainer.models.interface import Batch, TrainModel, forward_arguments
from muster_components.trainer.models.recipes import matmul_parameters, model_config
from muster_components.trainer.models.transformer import RecipeModel
from muster_components.trainer.parallel.schedules import SCHEDULES
from muster_components.trainer.parallel.sharding import apply_activation_checkpointing
from muster_components.trainer.parallel.spec import MeshShape
from muster_components.trainer.planning.eager_cost import AllocationTracker
from muster_components.trainer.planning.examples import example_batches
from muster_components.trainer.planning.memory import Candidate, estimate_memory
from muster_components.trainer.planning.profile_model import ModelProfile, ProfileOptions, profile_model

pytestmark = pytest.mark.slow  # imports torch

SAMPLES = 3
EAGER = ProfileOptions(compiled=False, dtype=torch.float32)


def recipe(name: str = "gpt:1m", seq_len: int = 32) -> RecipeModel:
    # CPUs have no fused attention with dropout.
    return RecipeModel(dataclasses.replace(model_config(name), dropout=0.0), seq_len)


def profile_of(model: TrainModel, options: ProfileOptions = EAGER) -> ModelProfile:
    return profile_model(model, example_batches(model, None), options)


def retained(profile: ModelProfile, recompute: Any = "none") -> float:
    return sum(profile.cost(part, recompute, SAMPLES).retained for part in profile.parts)


def saved_bytes(model: TrainModel, recompute: Any = "none", compile_backend: str | None = None) -> int:
    """What a real forward saves for backward, without parameters, buffers and the batch."""
    module = model.build()
    if isinstance(model, RecipeModel):
        model.initialize(module, torch.device("cpu"), 0)
    apply_activation_checkpointing(model.blocks(module), recompute)
    for compiled in model.compiled_modules(module) if compile_backend else ():
        compiled.compile(fullgraph=True, dynamic=False, backend=compile_backend)
    batch: Batch = example_batches(model, None)(SAMPLES)
    given = {
        tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers(), *batch.values())
    }
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in given:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(module(**forward_arguments(model, batch)), batch)
    loss.backward()  # type: ignore[no-untyped-call]  # only now may what was saved be freed
    return sum(saved.values())


@pytest.mark.parametrize("name", ["gpt:1m", "nanogpt:10m"])
def test_retained_bytes_are_those_that_autograd_saves(name: str) -> None:
    model = recipe(name)
    # The loss itself exists, and autograd does not save it.
    assert retained(profile_of(model)) - 4 == saved_bytes(model)


def test_compiled_blocks_retain_what_the_partitioner_saves() -> None:
    torch._dynamo.reset()
    model = recipe()
    profile = profile_of(model, ProfileOptions(compiled=True, dtype=torch.float32))
    measured = saved_bytes(model, compile_backend="aot_eager_decomp_partition")
    assert retained(profile) == pytest.approx(measured, rel=0.02)
    assert retained(profile) < 0.85 * retained(profile_of(model))


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputation_retains_less_and_computes_more(compiled: bool) -> None:
    profile = profile_of(recipe(), ProfileOptions(compiled=compiled, dtype=torch.float32))
    none, selective, full = (retained(profile, mode) for mode in ("none", "selective", "full"))
    assert full < selective < none
    block = next(part for part in profile.parts if part.is_block)
    work = [profile.cost(block, mode, SAMPLES).backward for mode in ("none", "selective", "full")]
    assert work[0].matmul_flops == work[1].matmul_flops < work[2].matmul_flops
    assert work[0].attention_flops == work[1].attention_flops < work[2].attention_flops
    # Its input is all that a block retains if everything is computed again, and the state of the random generator.
    state = torch.get_rng_state().nbytes
    assert profile.cost(block, "full", SAMPLES).retained == pytest.approx(SAMPLES * 32 * 128 * 4, abs=state)


def test_flops_of_matrix_products_are_those_of_the_formula() -> None:
    config = model_config("llama:8b", vocab_size=128256)
    profile = profile_of(RecipeModel(config, 512), ProfileOptions(compiled=True))
    works = [profile.cost(part, "none", 1) for part in profile.parts]
    total = sum(work.forward.matmul_flops + work.backward.matmul_flops for work in works)
    assert 1 <= total / (6 * matmul_parameters(config) * 512) < 1.06


def test_rows_that_are_not_aligned_take_longer_in_code_that_is_not_compiled() -> None:
    def head_work(vocab_size: int) -> float:
        profile = profile_of(small_gpt2(vocab_size))
        return sum(work.matmul_flops for part in profile.parts for work in (part.low["none"].forward,))

    blocks = profile_of(small_gpt2(264)).parts
    of_blocks = sum(part.low["none"].forward.matmul_flops for part in blocks if part.is_block)
    head = head_work(264) - of_blocks
    assert head_work(263) - of_blocks == pytest.approx(3 * head * 263 / 264)


def test_dropout_of_attention_is_noticed() -> None:
    assert profile_of(small_gpt2(264, "0.1")).attention_dropout
    assert not profile_of(small_gpt2(264)).attention_dropout


def small_gpt2(vocab_size: int, attention_dropout: str = "0") -> TrainModel:
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    sizes = {"n_embd": "32", "n_layer": "2", "n_head": "4", "n_positions": "32", "vocab_size": str(vocab_size)}
    return HuggingFaceModel("gpt2", {**sizes, "attn_pdrop": attention_dropout}, 32)


def test_every_parameter_is_in_a_part() -> None:
    model = recipe("gpt2:124m")
    profile = profile_of(model, ProfileOptions(compiled=True))
    with torch.device("meta"):
        expected = sum(parameter.numel() for parameter in model.build().parameters())
    assert profile.parameter_count == expected
    assert {p.index for part in profile.parts for p in part.parameters} == {p.index for p in profile.parameters}
    tied = next(part for part in profile.parts if part.name == "head")
    assert not tied.sharded_alone


class Towers(nn.Module):
    """Two towers with blocks, and a loss over the micro-batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
        self.right = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 32, batch_first=True) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = torch.ones(16)  # neither parameter nor buffer

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.right:
            y = block(y)
        error: Tensor = self.scale * (self.left(x) - y.mean(1) + self.shift)
        return error.square().mean()


class FieldArrays:
    weight_per_sample = 1.0

    def __len__(self) -> int:
        return 10

    def read(self, indices: Any) -> dict[str, Any]:
        return {"x": np.zeros((len(indices), 16), np.float32), "y": np.zeros((len(indices), 5, 16), np.float32)}


def test_a_module_of_the_user_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FactoryModel(f"{__name__}:Towers", {})
    profile = profile_model(model, example_batches(model, FieldArrays()), EAGER)
    assert sum(part.is_block for part in profile.parts) == 5
    assert profile.parameter_count == sum(parameter.numel() for parameter in Towers().parameters())


@pytest.mark.parametrize("kind", ["gpt2", "bert", "vit", "llama", "t5"])
def test_models_of_transformers_are_measured(kind: str) -> None:
    pytest.importorskip("transformers")
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    sizes = {"num_hidden_layers": "2", "hidden_size": "32", "num_attention_heads": "2", "intermediate_size": "64"}
    if kind == "gpt2":
        sizes = {"n_layer": "2", "n_embd": "32", "n_head": "2"}
    if kind == "llama":
        sizes["num_key_value_heads"] = "2"
    if kind == "t5":
        sizes = {"num_layers": "1", "d_model": "32", "d_kv": "16", "num_heads": "2", "d_ff": "64"}
    model = HuggingFaceModel(kind, sizes, 16)

    class Images(FieldArrays):
        def read(self, indices: Any) -> dict[str, Any]:
            return {
                "pixel_values": np.zeros((len(indices), 3, 224, 224), np.float32),
                "labels": np.zeros(len(indices), np.int64),
            }

    profile = profile_model(model, example_batches(model, Images()), ProfileOptions(compiled=True))
    assert sum(part.is_block for part in profile.parts) == 2
    assert retained(profile, "full") < retained(profile)


def test_with_a_memory_budget_compiled_modules_save_what_is_predicted_and_compute_the_rest_again() -> None:
    model = recipe(seq_len=128)
    found = {
        budget: profile_of(model, ProfileOptions(compiled=True, dtype=torch.float32, memory_budget=budget))
        for budget in (None, 0.5, 0.2)
    }
    kept, half, fifth = (retained(profile) for profile in found.values())
    assert fifth < half < 0.75 * kept
    blocks = [next(part for part in profile.parts if part.is_block) for profile in found.values()]
    work = [blocks[i].low["none"].backward.matmul_flops for i in range(3)]
    assert work[0] <= work[1] <= work[2]
    assert work[0] < work[2]
    torch._dynamo.reset()
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        assert saved_bytes(model, compile_backend="aot_eager_decomp_partition") == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_peak_put_together_from_parts_is_that_of_a_whole_step(recompute: Any) -> None:
    """Of one process in float32, whose step allocates activations, gradients and temporary tensors."""
    model = recipe(seq_len=128)
    with FakeTensorMode(), torch.device("cpu"):
        module = model.build()
        apply_activation_checkpointing(model.blocks(module), recompute)
        batch = {name: torch.empty_like(tensor) for name, tensor in example_batches(model, None)(SAMPLES).items()}
        tracker = AllocationTracker()
        for tensor in (*module.parameters(), *module.buffers(), *batch.values()):
            tracker.ignore(tensor)
        with tracker:
            model.loss(module(**batch), batch).backward()  # type: ignore[no-untyped-call]
    profile = profile_of(model)
    candidate = Candidate(
        mesh=MeshShape(),
        micro_batch=SAMPLES,
        micro_steps=1,
        recompute=recompute,
        schedule=SCHEDULES["1F1B"],
        bf16=False,
    )
    memory = estimate_memory(profile, candidate, [profile.parts])
    assert memory.activations + memory.gradients + memory.temporary == pytest.approx(tracker.peak, rel=0.05)
