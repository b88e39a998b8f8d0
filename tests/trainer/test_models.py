"""The network: shapes, causality, parameter counts, and initial weights that do not depend on sharding."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from muster_components.trainer.models.recipes import ModelConfig, matmul_parameters, model_config

if TYPE_CHECKING:
    import torch

    from muster_components.trainer.config import Recompute
    from muster_components.trainer.models.transformer import Transformer

pytestmark = pytest.mark.slow  # imports torch

SMALL = ModelConfig(name="small", layers=2, dim=32, heads=4, kv_heads=2, hidden=64)
SMALL_GPT2 = ModelConfig(name="small2", layers=2, dim=32, heads=4, kv_heads=4, hidden=64, style="gpt2", bias=True)
SMALL_TIED = ModelConfig(
    name="small3", layers=2, dim=32, heads=4, kv_heads=4, hidden=64, style="gpt2", tied=True, dropout=0.25
)


def build(config: ModelConfig, seq_len: int = 16, seed: int = 0) -> Transformer:
    import torch

    from muster_components.trainer.models.transformer import Transformer, init_weights

    with torch.device("meta"):
        model = Transformer(config, seq_len)
    init_weights(model, torch.device("cpu"), seed)
    return model


def tokens(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    row = torch.randint(0, 256, (batch, length + 1), generator=torch.Generator().manual_seed(1))
    return row[:, :-1].clone(), row[:, 1:].clone()


@pytest.mark.parametrize("name", ["gpt:1m", "gpt:10m", "gpt:124m", "gpt:350m", "gpt:1b", "llama:8b"])
def test_the_parameters_counted_for_flops_are_those_of_the_model(name: str) -> None:
    import torch

    from muster_components.trainer.models.transformer import Transformer

    with torch.device("meta"):
        model = Transformer(model_config(name), 128)
    matrices = sum(
        parameter.numel()
        for path, parameter in model.named_parameters()
        if parameter.dim() == 2 and not path.startswith(("embed", "positions"))
    )
    assert matrices == matmul_parameters(model_config(name))


def test_sizes_match_the_names_of_recipes() -> None:
    import torch

    from muster_components.trainer.models.transformer import Transformer
    from muster_components.trainer.parallel.sharding import parameter_count

    def size(name: str, vocab_size: int) -> float:
        with torch.device("meta"):
            return parameter_count(Transformer(model_config(name, vocab_size=vocab_size), 1024)) / 1e6

    assert size("gpt:10m", 256) == pytest.approx(10.8, abs=0.1)
    assert size("gpt:1b", 256) == pytest.approx(1000, rel=0.04)
    assert size("llama:8b", 128_256) == pytest.approx(8030, rel=0.001)


@pytest.mark.parametrize("config", [SMALL, SMALL_GPT2], ids=["modern", "gpt2"])
def test_the_initial_loss_is_that_of_uniform_predictions(config: ModelConfig) -> None:
    source, target = tokens(4, 16)
    loss = build(config)(source, target) / target.numel()
    assert loss.item() == pytest.approx(math.log(256), abs=0.1)


@pytest.mark.parametrize("config", [SMALL, SMALL_GPT2], ids=["modern", "gpt2"])
def test_attention_is_causal(config: ModelConfig) -> None:
    import torch

    model = build(config)
    source, _ = tokens(1, 16)
    changed = source.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 256

    def hidden(token_BL: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        hook = model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        model(token_BL, torch.zeros_like(token_BL))
        hook.remove()
        return seen[0]

    difference = (hidden(source) - hidden(changed)).abs().amax(dim=(0, 2))
    assert difference[:10].max() == 0
    assert difference[10:].min() > 0


def test_rotary_attention_depends_on_relative_positions_only() -> None:
    import torch

    from muster_components.trainer.models.transformer import apply_rotary_emb, rope_table

    table = rope_table(32, 8, 10_000.0, torch.device("cpu"))
    query, key = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))

    def score(at: int, other: int) -> float:
        return float(apply_rotary_emb(query[None], table[at][None]) @ apply_rotary_emb(key[None], table[other][None]).T)

    assert score(9, 4) == pytest.approx(score(25, 20), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


def test_padding_targets_have_no_loss() -> None:
    import torch

    from muster_components.trainer.models.transformer import IGNORE_INDEX

    model = build(SMALL)
    source, target = tokens(2, 16)
    alone = model(source[:1], target[:1])
    target[1] = IGNORE_INDEX
    torch.testing.assert_close(model(source, target), alone)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_activation_checkpointing_does_not_change_gradients(recompute: Recompute) -> None:
    import torch

    from muster_components.trainer.parallel.sharding import apply_activation_checkpointing

    plain, saving = build(SMALL), build(SMALL)
    apply_activation_checkpointing(list(saving.blocks), recompute)
    for model in (plain, saving):
        model(*tokens(2, 16)).backward()
    for (name, a), b in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)


@pytest.mark.parametrize("bias", [False, True])
def test_selective_recomputation_computes_no_matrix_product_again(bias: bool) -> None:
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from muster_components.trainer.parallel.sharding import apply_activation_checkpointing

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16, bias=bias), nn.Linear(16, 8, bias=bias)

        def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
            projected: torch.Tensor = self.down(torch.relu(self.up(x_BD)))
            return projected

    block = Block()
    apply_activation_checkpointing([block], "selective")
    with FlopCounterMode(display=False) as forward:
        output = block(torch.randn(4, 8, requires_grad=True))
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_generators_take_every_seed() -> None:
    import torch

    from muster_components.trainer.config import MAX_SEED
    from muster_components.trainer.forward_backward import seed_generators

    numbers = set()
    for seed in (0, 300_000_000, 1_795_471_605, MAX_SEED):
        for data_rank in (0, 1):
            seed_generators(seed, 1, data_rank)
            numbers.add(torch.rand(()).item())
    assert len(numbers) == 8


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_all_blocks_share_one_compiled_graph(recompute: Recompute) -> None:
    import torch
    from torch._dynamo.utils import counters

    from muster_components.trainer.parallel.sharding import apply_activation_checkpointing

    torch._dynamo.reset()
    counters.clear()
    model = build(dataclasses.replace(SMALL, layers=4))
    apply_activation_checkpointing(list(model.blocks), recompute)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    model(*tokens(2, 16)).backward()
    assert counters["stats"]["unique_graphs"] == 1


def test_initial_weights_depend_on_the_seed_only() -> None:
    import torch

    first, same, other = build(SMALL, seed=1), build(SMALL, seed=1), build(SMALL, seed=2)
    assert torch.equal(first.embed.weight, same.embed.weight)
    assert not torch.equal(first.embed.weight, other.embed.weight)
    assert not torch.equal(first.blocks[0].attention.qkv.weight, first.blocks[1].attention.qkv.weight)  # type: ignore[union-attr, arg-type]


def test_tied_models_have_the_published_sizes_of_nanogpt() -> None:
    import torch

    from muster_components.trainer.models.transformer import Transformer

    # nanoGPT counts all parameters but the positions.
    for name, vocabulary, millions in (("nanogpt:124m", 50_304, 123.59), ("nanogpt:10m", 65, 10.65)):
        config = model_config(name) if vocabulary > 256 else dataclasses.replace(model_config(name), vocab_size=65)
        with torch.device("meta"):
            model = Transformer(dataclasses.replace(config, vocab_size=vocabulary), 256)
        count = sum(parameter.numel() for parameter in model.parameters()) - model.positions.weight.numel()  # type: ignore[union-attr]
        assert count / 1e6 == pytest.approx(millions, abs=0.005), name


def test_the_head_and_the_embedding_stay_tied_on_a_device_and_share_their_gradient() -> None:
    model = build(dataclasses.replace(SMALL_TIED, dropout=0.0))
    assert model.head.out.weight is model.embed.weight
    model(*tokens(2, 16)).backward()
    assert model.embed.weight.grad is model.head.out.weight.grad is not None


@pytest.mark.parametrize("compiled", [True, False])
def test_gelu_equals_pytorchs_tanh_approximation(compiled: bool) -> None:
    import torch

    from muster_components.trainer.models.transformer import gelu

    x = torch.linspace(-12, 12, 4001, requires_grad=True)
    y = torch.compile(gelu, backend="aot_eager")(x) if compiled else gelu(x)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x, approximate="tanh"), atol=1e-6, rtol=1e-5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    (reference,) = torch.autograd.grad(torch.nn.functional.gelu(x, approximate="tanh").sum(), x)
    torch.testing.assert_close(gradient, reference, atol=1e-5, rtol=1e-4)


def test_gelu_without_compilation_saves_its_input_alone_for_the_backward_pass() -> None:
    import torch

    from muster_components.trainer.models.transformer import gelu

    saved = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gelu(torch.ones(8, requires_grad=True))
    assert len(saved) == 1


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_at_its_rate_and_scales_what_it_keeps(rate: float) -> None:
    import torch

    from muster_components.trainer.models.transformer import dropout, dropout_keys

    x = torch.ones(64, 32, 48)
    keys = dropout_keys(torch.arange(64, dtype=torch.int32), 3)
    first, second = dropout(x, rate, keys[0]), dropout(x, rate, keys[1])
    kept = first != 0
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=0.005)
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / (1 - rate)))
    # Places, samples and neighbours are independent: both are kept as often as the product of the rates says.
    both = (1 - rate) ** 2
    assert (kept & (second != 0)).float().mean().item() == pytest.approx(both, abs=0.01)
    for other in (kept.roll(1, 0), kept.roll(1, 1), kept.roll(1, 2), kept.roll(16, 2)):
        assert (kept & other).float().mean().item() == pytest.approx(both, abs=0.01)


def test_what_is_dropped_depends_on_the_sample_and_not_on_the_batch() -> None:
    import torch

    model = build(SMALL_TIED)
    for block in model.blocks:
        block.attention.dropout = 0.0  # type: ignore[union-attr]  # PyTorch's own, from the global generator
    token_BL, target_BL = tokens(4, 16)
    number_B = torch.tensor([7, 8, 9, 10], dtype=torch.int32)
    whole = model(token_BL, target_BL, number_B)
    halves = [model(token_BL[rows], target_BL[rows], number_B[rows]) for rows in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(whole, sum(halves))
    assert model(token_BL, target_BL, number_B + 1).item() != pytest.approx(whole.item(), abs=1e-3)
    model.eval()
    torch.testing.assert_close(model(token_BL, target_BL, number_B), model(token_BL, target_BL))


def test_the_learning_rate_rises_linearly_then_decays_to_a_tenth() -> None:
    from muster_components.trainer.train_step import learning_rate

    rates = [learning_rate(step, peak=1.0, warmup=4, steps=12) for step in range(1, 13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in itertools.pairwise(rates[3:]))
    assert rates[7] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(1, peak=1.0, warmup=0, steps=1) == pytest.approx(0.1)


def test_a_module_of_the_user_needs_no_package_of_the_extra_hf() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(safetensors=None, transformers=None)\n"
        "from muster_components.trainer.models.factory import FactoryModel\n"
        "FactoryModel('torch.nn:Linear', {'in_features': '2', 'out_features': '2'}).build()\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
