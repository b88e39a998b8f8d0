"""Recipes as models of Transformers, and first weights from another run or folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import Finished, Starter

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig

pytestmark = pytest.mark.slow  # imports torch and transformers
MODERN = ModelConfig(name="tiny", layers=2, dim=32, heads=4, kv_heads=2, hidden=48, vocab_size=64, rope_theta=5e5)
GPT2 = replace(MODERN, kv_heads=4, style="gpt2", bias=True, tied=True)
CONFIGS = {
    "modern": MODERN,
    "modern with biases, tied": replace(MODERN, bias=True, tied=True),
    "gpt2": GPT2,
    "gpt2 without biases, not tied": replace(GPT2, bias=False, tied=False),
}


def initialized(config: ModelConfig, seed: int = 0) -> Any:
    import torch

    from muster_components.trainer.models.transformer import RecipeModel

    model = RecipeModel(config, 16)
    with torch.device("meta"):
        module = model.build()
    model.initialize(module, torch.device("cpu"), seed)
    for name, parameter in module.named_parameters():  # biases and norms that matter
        generator = torch.Generator().manual_seed(len(name) + seed)
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model, module.eval()


def logits(module: Any) -> Any:
    import torch

    tokens = torch.arange(32).reshape(2, 16) * 7 % 64
    with torch.no_grad():
        return tokens, module.head.out(module.head.norm(module.states(tokens, None)))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_saved_recipe_opens_in_transformers_with_the_same_logits_and_is_loaded_again(
    tmp_path: Path, kind: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from muster_components.trainer.models.recipe_huggingface import recipe_plan
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model, module = initialized(CONFIGS[kind])
    model.save(module, tmp_path / "saved")
    opened, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens, ours = logits(module)
    with torch.no_grad():
        theirs = opened.eval()(tokens).logits
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)

    _, other = initialized(CONFIGS[kind], seed=1)
    opened.save_pretrained(tmp_path / "theirs")
    source = SafetensorsFolder(tmp_path / "theirs")
    load_weights(other, source, plan=recipe_plan(CONFIGS[kind], other, source), whole=other)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in other.state_dict().items())


def test_a_recipe_without_a_class_in_transformers_is_refused(tmp_path: Path) -> None:
    model, module = initialized(replace(GPT2, kv_heads=2))
    with pytest.raises(InputError, match="GPT2LMHeadModel needs kv_heads of 4, its heads; got 2"):
        model.save(module, tmp_path / "saved")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(MODERN, layers=3), r"missing: model\.layers\.2\.\S+, .* and 6 more"),
        (replace(MODERN, layers=1), r"not in the model: model\.layers\.1\."),
        (replace(MODERN, hidden=64), r"of another shape: \S+ \(48, 32\) instead of \(64, 32\)"),
        (
            replace(MODERN, rope_theta=1e4),
            r"config\.json is of another model: rope_theta is 500000.0 and must be 10000.0",
        ),
        (replace(MODERN, heads=8, kv_heads=4), "num_attention_heads is 4 and must be 8; num_key_value_heads is 2"),
        (GPT2, "model_type is 'llama' and must be 'gpt2'"),
    ],
)
def test_a_folder_of_another_model_is_refused_with_what_differs(tmp_path: Path, other: ModelConfig, why: str) -> None:
    from muster_components.trainer.models.recipe_huggingface import recipe_plan
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder

    model, module = initialized(MODERN)
    model.save(module, tmp_path / "saved")
    _, whole = initialized(other)
    with pytest.raises(InputError, match=why):
        recipe_plan(other, whole, SafetensorsFolder(tmp_path / "saved"))


def test_biases_that_a_recipe_lacks_must_be_zero(tmp_path: Path) -> None:
    from muster_components.trainer.models.recipe_huggingface import recipe_plan
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder

    model, module = initialized(GPT2)
    model.save(module, tmp_path / "saved")
    config = replace(GPT2, bias=False)
    _, whole = initialized(config)
    with pytest.raises(InputError, match="must be zero, since tiny has no such bias"):
        recipe_plan(config, whole, SafetensorsFolder(tmp_path / "saved"))


def test_a_run_is_exported_and_others_begin_with_its_weights_on_another_number_of_ranks(
    finished: Finished, start: Starter, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from muster.cli.app import cli

    exported = tmp_path / "exported"
    done = CliRunner().invoke(cli, ["export", str(finished.run_dir), "-o", str(exported), "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["checkpoint"].endswith("step-00000009")
    config = json.loads((exported / "config.json").read_text())
    assert (config["architectures"], row["parameters"] > 10_000) == (["LlamaForCausalLM"], True)

    flags = [*finished.flags, "--steps", "1", "--warmup", "0", "--lr", "1e-9"]
    losses = {}
    for number, (name, source) in enumerate({"run": finished.run_dir, "folder": exported}.items()):
        run = start(1, *flags, "--init_from", str(source), run_dir=tmp_path / f"from-{number}")
        assert run.end() == [0], run.log_text()
        losses[name] = json.loads((tmp_path / f"from-{number}" / "metrics" / "rank-0.jsonl").read_text())["loss"]
    cold = start(1, *flags, run_dir=tmp_path / "cold")
    assert cold.end() == [0], cold.log_text()
    random = json.loads((tmp_path / "cold" / "metrics" / "rank-0.jsonl").read_text())["loss"]
    assert losses["run"] == pytest.approx(losses["folder"], abs=1e-5)
    assert losses["run"] < random - 0.1


def test_first_weights_of_another_shape_end_the_run_with_2(finished: Finished, start: Starter, tmp_path: Path) -> None:
    other = start(
        1, *finished.flags, "--model_args", "layers=3", "--init_from", str(finished.run_dir), run_dir=tmp_path / "o"
    )
    assert other.end() == [2]
    assert "is of another model: layers was" in other.log_text()
    missing = start(1, *finished.flags, "--init_from", str(tmp_path / "none"), run_dir=tmp_path / "m")
    assert missing.end() == [2]
    assert "--init_from must be a run folder, a checkpoint or a folder of safetensors; got" in missing.log_text()
