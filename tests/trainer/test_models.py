"""The network: shapes, causality, parameter counts, and initial weights that do not depend on sharding."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest

from muster_components.trainer.models.recipes import ModelConfig, matmul_parameters, model_config

if TYPE_CHECKING:
    import torch

    from muster_components.trainer.config import Recompute
    from muster_components.trainer.models.transformer import Transformer

pytestmark = pytest.mark.slow  # imports torch

SMALL = ModelConfig(name="small", layers=2, dim=32, heads=4, kv_heads=2, hidden=64)
SMALL_GPT2 = ModelConfig(name="small2", layers=2, dim=32, heads=4, kv_heads=4, hidden=64, style="gpt2")


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


@pytest.mark.parametrize("name", ["gpt:1m", "gpt:10m", "gpt:124m", "gpt2:124m", "gpt:350m", "gpt:1b", "llama:8b"])
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


def test_initial_weights_depend_on_the_seed_only() -> None:
    import torch

    first, same, other = build(SMALL, seed=1), build(SMALL, seed=1), build(SMALL, seed=2)
    assert torch.equal(first.embed.weight, same.embed.weight)
    assert not torch.equal(first.embed.weight, other.embed.weight)
    assert not torch.equal(first.blocks[0].attention.qkv.weight, first.blocks[1].attention.qkv.weight)  # type: ignore[union-attr, arg-type]


def test_the_learning_rate_rises_linearly_then_decays_to_a_tenth() -> None:
    from muster_components.trainer.train_step import learning_rate

    rates = [learning_rate(step, peak=1.0, warmup=4, steps=12) for step in range(1, 13)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert all(a > b for a, b in itertools.pairwise(rates[3:]))
    assert rates[7] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert learning_rate(1, peak=1.0, warmup=0, steps=1) == pytest.approx(0.1)
