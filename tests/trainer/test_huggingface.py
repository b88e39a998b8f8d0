"""Models of Transformers: configurations, initial weights, names of weights, training on several ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import Starter, compilations, losses, metrics, write_text

from muster_components.trainer.errors import EXIT_BAD_INPUT, InputError

pytestmark = pytest.mark.slow

COMMON = {"num_hidden_layers": "2", "hidden_size": "32", "num_attention_heads": "4"}
DECODER = COMMON | {"intermediate_size": "48", "vocab_size": "260", "max_position_embeddings": "64"}
TOKENS = {"bos_token_id": "0", "eos_token_id": "0"}
FAMILIES: dict[str, dict[str, str]] = {
    "llama": DECODER | {"num_key_value_heads": "2"},
    "qwen3": DECODER | {"num_key_value_heads": "2", "head_dim": "8"} | TOKENS,
    "gemma2": DECODER | {"num_key_value_heads": "2", "head_dim": "8"},
    "phi": DECODER | TOKENS,
    "mixtral": DECODER | {"num_key_value_heads": "2", "num_local_experts": "4"},
    "gpt2": {"n_embd": "32", "n_layer": "2", "n_head": "4", "vocab_size": "260", "n_positions": "64"} | TOKENS,
    "opt": {k: v for k, v in DECODER.items() if k != "intermediate_size"}
    | {"word_embed_proj_dim": "32", "ffn_dim": "48"},
    "bert": DECODER,
    "t5": {"d_model": "32", "d_kv": "8", "d_ff": "48", "num_layers": "2", "num_heads": "4", "vocab_size": "260"},
    "vit": COMMON | {"intermediate_size": "48", "image_size": "16", "patch_size": "8"},
    "resnet": {"embedding_size": "8", "hidden_sizes": "[8,16]", "depths": "[1,2]"},
}


def model_of(source: str, args: dict[str, str] | None = None, seq_len: int = 16) -> Any:
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    return HuggingFaceModel(source, args or {}, seq_len)


def initialized(model: Any, seed: int = 0) -> Any:
    import torch

    with torch.device("meta"):
        module = model.build()
    model.initialize(module, torch.device("cpu"), seed)
    return module


def inputs_of(model: Any) -> dict[str, Any]:
    import torch

    if model.sample_spec.kind == "fields":
        return {"pixel_values": torch.rand(2, *model.objective.image_shape)}
    inputs = {"input_ids": torch.arange(32).reshape(2, 16)}
    return inputs | {"decoder_input_ids": torch.arange(20).reshape(2, 10)} if "t5" in model.name else inputs


def names_in(folder: Path) -> dict[str, tuple[int, ...]]:
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder

    return SafetensorsFolder(folder).shapes


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_initialized_as_transformers_does_and_saved_for_from_pretrained(tmp_path: Path, family: str) -> None:
    import torch

    model = model_of(family, FAMILIES[family])
    module = initialized(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # the spread of a bias of two numbers is any
        theirs = model._class(model.config)
    for name, tensor in theirs.named_parameters():
        ours, tolerance = module.get_parameter(name), 8 / tensor.numel() ** 0.5  # standard errors of a few draws
        spread = tensor.std(correction=0).item()
        assert ours.mean().item() == pytest.approx(tensor.mean().item(), abs=tolerance * spread + 1e-6), name
        assert ours.std(correction=0).item() == pytest.approx(spread, rel=tolerance), name
    for name, buffer in theirs.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer), name

    module.eval()
    inputs = inputs_of(model)
    logits = module(**inputs).logits
    model.save(module, tmp_path / "ours", max_file_bytes=20_000)
    opened = model._class.from_pretrained(tmp_path / "ours").eval()
    for name, tensor in opened.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    torch.testing.assert_close(opened(**inputs).logits, logits)  # memory-mapped weights are aligned in another way
    opened.save_pretrained(tmp_path / "theirs")
    assert names_in(tmp_path / "ours") == names_in(tmp_path / "theirs")

    again = model_of(str(tmp_path / "theirs"))
    assert torch.equal(initialized(again).eval()(**inputs).logits, logits)
    assert again.architecture() == model.architecture()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_blocks_of_a_model_are_captured_as_full_graphs(family: str) -> None:
    import torch

    model = model_of(family, FAMILIES[family])
    module = initialized(model)
    blocks = model.compiled_modules(module)
    assert len(blocks) >= 1
    torch._dynamo.reset()
    for block in blocks:
        block.compile(fullgraph=True, dynamic=False, backend="eager")
    module(**inputs_of(model)).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_weights_of_a_base_model_without_its_prefix_are_found(tmp_path: Path) -> None:
    import torch

    model = model_of("gpt2", FAMILIES["gpt2"])
    module = initialized(model)
    module.transformer.save_pretrained(tmp_path / "base")  # names as in the published gpt2: wte.weight, h.0...
    assert "wte.weight" in names_in(tmp_path / "base")
    module.config.architectures = ["GPT2LMHeadModel"]
    module.config.save_pretrained(tmp_path / "base")
    again = initialized(model_of(str(tmp_path / "base")), seed=1)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), module.parameters(), strict=True))


@pytest.mark.parametrize(
    ("source", "args", "message"),
    [
        ("lama", {}, "is neither a local folder nor a model type of Transformers; did you mean"),
        ("llama", {"hidden": "3"}, "--model_args: 'hidden' is not in the configuration of llama; did you mean"),
        ("llama", {"hidden_size": "many"}, "--model_args: hidden_size must be of type int; got 'many'"),
        (
            "wav2vec2",
            {},
            "wav2vec2 has no image classification, masked language model, causal language model, encoder-",
        ),
        ("llama", {"max_position_embeddings": "8"}, "--seq_len must be at most 8, the positions of hf:llama; got 16"),
    ],
)
def test_a_wrong_configuration_is_rejected(source: str, args: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        model_of(source, args)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 0}, "ZeroDivisionError"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"model_type": ["llama"]}, "TypeError"),
        ({"attn_implementation": "someone/kernel"}, "must be one of Transformers, such as sdpa; got 'someone/kernel'"),
        ({"_attn_implementation": "someone/kernel@main:f"}, "got 'someone/kernel@main:f'"),
        ({"attn_implementation": "flash_attention_3"}, "is 'flash_attention_3', whose package is not installed"),
    ],
)
def test_a_wrong_configuration_file_is_rejected(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model_of("llama", FAMILIES["llama"]).config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError, match=re.escape(message)):
        model_of(str(tmp_path))


def test_a_kernel_in_the_configuration_of_a_part_is_rejected(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "attn_implementation": {"text_config": "someone/kernel"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="got 'someone/kernel'"):
        model_of(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "task"),
    [
        ("bert", "masked language model"),
        ("llama", "causal language model"),
        ("vit", "image classification"),
        ("roberta", "masked language model"),
        ("gpt_neox", "causal language model"),
        ("resnet", "image classification"),
        ("t5", "encoder-decoder language model"),
        ("mt5", "encoder-decoder language model"),
        ("deit", "image classification"),  # one of two classes of Transformers
    ],
)
def test_the_task_follows_from_the_model_type(source: str, task: str) -> None:
    import torch

    model = model_of(source)
    assert model.task == task
    with torch.device("meta"):
        assert isinstance(model.build(), torch.nn.Module)


def test_a_vocabulary_without_the_padding_token_is_refused() -> None:
    with pytest.raises(
        InputError, match="pad_token_id must be less than vocab_size, 260; got 32000; add pad_token_id=0"
    ):
        model_of("phi3", {"vocab_size": "260"})


def test_the_size_of_images_is_that_of_the_arguments_or_the_folder_also_for_networks_of_convolutions(
    tmp_path: Path,
) -> None:
    assert model_of("resnet").objective.image_shape == (3, 224, 224)
    model = model_of("resnet", FAMILIES["resnet"] | {"image_size": "32"})
    assert model.objective.image_shape == (3, 32, 32)
    model.config.save_pretrained(tmp_path)
    assert model_of(str(tmp_path)).objective.image_shape == (3, 32, 32)
    with pytest.raises(InputError, match="'image_size' is not in the configuration of llama"):
        model_of("llama", {"image_size": "32"})


@pytest.mark.parametrize(("given", "offline"), [(None, "1"), ("0", "0")])
def test_models_of_transformers_are_trained_without_access_to_the_hub_unless_the_user_sets_it(
    start: Starter, tmp_path: Path, given: str | None, offline: str
) -> None:
    (tmp_path / "users.py").write_text(
        "import huggingface_hub\n\n\ndef images():\n"
        "    print('offline:', huggingface_hub.is_offline_mode(), flush=True)\n    raise SystemExit(0)\n"
    )
    environ = {} if given is None else {"HF_HUB_OFFLINE": given}
    ranks = start(1, "--model", "hf:resnet", "--data", "users:images", environ=environ, preloaded=False)
    ranks.end()
    assert f"offline: {offline == '1'}" in ranks.log_text()


def test_the_architecture_in_a_folder_decides_the_task(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(architectures=["BertLMHeadModel"], is_decoder=True).save_pretrained(tmp_path)
    assert model_of(str(tmp_path)).task == "causal language model"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"])
def test_a_folder_whose_weights_are_in_another_format_is_refused(tmp_path: Path, name: str) -> None:
    model_of("llama", FAMILIES["llama"]).config.save_pretrained(tmp_path)
    assert model_of(str(tmp_path)).name  # a configuration without weights
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{name} is not a safetensors file.*save_pretrained"):
        model_of(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert model_of(str(tmp_path)).name


def test_the_flops_of_a_llama_are_those_of_its_matrices() -> None:
    model = model_of("llama", FAMILIES["llama"])
    attention, feed_forward, norms = 2 * 32 * 32 + 2 * 32 * 16, 3 * 32 * 48, 2 * 32
    multiplied = 2 * (attention + feed_forward + norms) + 32 + 32 * 260
    assert model.flops_per_sample() == 6 * multiplied * 16 + 12 * 2 * 32 * 16**2


def test_the_flops_of_a_t5_count_encoder_and_decoder_with_their_own_lengths() -> None:
    model = model_of("t5", FAMILIES["t5"], seq_len=64)
    encoder, decoder = 64 - 10 + 3 + 1, 10 + 3 + 1  # kept or corrupted tokens, sentinels, end
    attention, feed_forward = 4 * 32 * 32, 2 * 32 * 48
    per_layer = (
        encoder * (attention + feed_forward + 2 * 32 * encoder)
        + decoder * (attention + feed_forward + 2 * 32 * decoder)
        + decoder * (2 * 32 * 32 + 2 * 32 * encoder)  # attention to the encoder's output
        + encoder * 2 * 32 * 32  # its keys and values
    )
    assert model.flops_per_sample() == 3 * 2 * (2 * per_layer + decoder * 32 * 260)


def test_the_flops_of_a_network_of_convolutions_are_counted() -> None:
    args = {"embedding_size": "8", "hidden_sizes": "[16]", "depths": "[1]", "layer_type": "basic", "num_labels": "5"}
    # Of a 224 x 224 image: 7 x 7 with stride 2, pooling, then 3 x 3 twice and the 1 x 1 shortcut, and the classifier.
    convolutions = 112 * 112 * 49 * 3 * 8 + 56 * 56 * (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16)
    assert model_of("resnet", args).flops_per_sample() == 3 * 2 * (convolutions + 16 * 5)


def test_more_corrupted_spans_than_sentinels_of_the_tokenizer_are_refused() -> None:
    from muster_components.trainer.data.tokenizer import SpecialTokens
    from muster_components.trainer.models.huggingface import HuggingFaceModel

    special = SpecialTokens(sentinels=(255, 254, 253))
    assert HuggingFaceModel("t5", FAMILIES["t5"], 64, special).objective.weight(64) == 14
    with pytest.raises(InputError, match="--seq_len 80 makes 4 corrupted spans, but there are only 3 sentinel tokens"):
        HuggingFaceModel("t5", FAMILIES["t5"], 80, special)


USER_MODULE = """
import numpy as np, torch
import torch.nn.functional as F
from torch import nn

class Images:
    def __len__(self):
        return 50
    def __getitem__(self, i):
        random = np.random.default_rng(i)
        return {"pixel_values": random.normal(i % 5, 1, (3, 16, 16)), "labels": i % 5}

class Pairs:
    def __len__(self):
        return 50
    def __getitem__(self, i):
        random = np.random.default_rng(i)
        return {"image": random.normal(size=48).astype(np.float32), "text": random.integers(0, 20, 6)}

class TwoTowers(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.text = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.image = nn.Sequential(*(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU()) for _ in range(2)))
        self.project = nn.Linear(48, width)
        self.scale = nn.Parameter(torch.tensor(1.0))  # without dimensions, as CLIP's
        self.register_buffer("table", torch.linspace(0, 1, width), persistent=False)
        self.mean = torch.full((48,), 0.1)  # neither parameter nor buffer

    def forward(self, image, text):
        x = self.embed(text) + self.table
        for layer in self.text:
            x = layer(x)
        seen = self.project(self.image(image - self.mean))
        logits = self.scale * F.normalize(x.mean(1), dim=-1) @ F.normalize(seen, dim=-1).T
        target = torch.arange(len(image), device=image.device)
        return {"loss": (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2}

def towers(width=16):
    return TwoTowers(width)

class Unused(TwoTowers):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)

class Fixed(nn.Module):
    def forward(self, image, text):
        return image.sum() + text.sum()
"""

RUNS = {
    "decoder": ("hf:llama", FAMILIES["llama"], "text"),
    "encoder": (
        "hf:bert",
        FAMILIES["bert"] | {"hidden_dropout_prob": "0.0", "attention_probs_dropout_prob": "0.0"},
        "text",
    ),
    "vit": ("hf:vit", FAMILIES["vit"] | {"num_labels": "5"}, "user:Images"),
    "encoder-decoder": ("hf:t5", FAMILIES["t5"] | {"dropout_rate": "0.0"}, "text"),
    "towers": ("user:towers", {"width": "24"}, "user:Pairs"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_an_unmodified_model_trains_on_two_ranks_as_on_one(tmp_path: Path, kind: str) -> None:
    model, args, data = RUNS[kind]
    write_text(tmp_path)
    (tmp_path / "user.py").write_text(USER_MODULE)
    flags = [
        *("--model", model, "--model_args", ",".join(f"{k}={v}" for k, v in args.items()), "--data", data),
        *("--seq_len", "16", "--global_batch", "8", "--micro_batch", "2", "--steps", "6", "--lr", "1e-2"),
        *("--no_compile", "--log_every", "1"),
    ]
    curves = []
    for ranks in (1, 2):
        starter = Starter(tmp_path)
        run = starter(ranks, *flags, run_dir=tmp_path / f"run-{ranks}")
        try:
            assert run.end() == [0] * ranks, run.log_text()
        finally:
            starter.kill_all()
        curves.append(losses(run.run_dir))
        assert metrics(run.run_dir)[0]["tokens"] == (None if data.startswith("user:") else 8 * 16)
        assert ("samples/s" if data.startswith("user:") else "tok/s") in run.log_text()
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)
    assert list(curves[0]) == [1, 2, 3, 4, 5, 6]
    assert min(curves[0].values()) < curves[0][1] - 0.02


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--model", "user:Unused", "--parallel", "ddp"), "but extra.weight has no gradient; use --parallel fsdp"),
        (("--model", "user:Fixed"), "--model user:Fixed must have a parameter that requires a gradient; got none"),
    ],
    ids=["an unused parameter with ddp", "no parameter"],
)
def test_a_module_that_cannot_be_trained_is_refused(
    tmp_path: Path, start: Starter, flags: tuple[str, ...], message: str
) -> None:
    (tmp_path / "user.py").write_text(USER_MODULE)
    run = start(2, *flags, "--data", "user:Pairs", "--global_batch", "4", "--steps", "3", "--no_compile")
    assert run.end() == [EXIT_BAD_INPUT] * 2, run.log_text()
    assert message in run.log_text()


def test_a_model_with_a_parameter_that_forward_does_not_use_resumes_on_another_mesh(
    tmp_path: Path, start: Starter
) -> None:
    (tmp_path / "user.py").write_text(USER_MODULE)
    flags = (
        *("--model", "user:Unused", "--data", "user:Pairs", "--global_batch", "4", "--micro_batch", "2"),
        *("--no_compile", "--checkpoint_every", "2", "--warmup", "1", "--steps"),
    )
    meshes = {"meshes": [(2, "fsdp"), (2, "pp=2"), (1, "fsdp")], "one": [(1, "fsdp")] * 3}
    for name, attempts in meshes.items():
        for attempt, (ranks, mesh) in enumerate(attempts):
            steps = str(2 * attempt + 2)
            run = start(ranks, *flags, steps, "--parallel", mesh, run_dir=tmp_path / name, attempt=attempt)
            assert run.end() == [0] * ranks, run.log_text()
    assert list(losses(tmp_path / "one")) == [1, 2, 3, 4, 5, 6]
    assert losses(tmp_path / "meshes") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)


def test_blocks_of_torchs_own_classes_are_compiled_as_full_graphs(tmp_path: Path, start: Starter) -> None:
    (tmp_path / "user.py").write_text(USER_MODULE)
    flags = ("--model", "user:towers", "--data", "user:Pairs", "--global_batch", "4", "--steps", "2", "--lr", "1e-2")
    plain = start(2, *flags, "--no_compile", run_dir=tmp_path / "plain")
    compiled = start(2, *flags, "--backend", "aot_eager", run_dir=tmp_path / "compiled")
    assert compiled.end() == [0, 0], compiled.log_text()
    assert plain.end() == [0, 0], plain.log_text()
    assert losses(compiled.run_dir) == pytest.approx(losses(plain.run_dir), rel=1e-4)
    # Blocks of one list share theirs, but for the input of the first image block, which has no gradient.
    graphs = [record for record in compilations(compiled.run_dir) if record["kind"] == "graph"]
    assert len(graphs) == 3
    assert {record["kind"] for record in compilations(compiled.run_dir)} == {"graph", "backward"}


def test_a_folder_that_cannot_be_replaced_is_refused_before_the_first_step(tmp_path: Path, start: Starter) -> None:
    text = write_text(tmp_path)
    model = ("--model", "hf:llama", "--model_args", ",".join(f"{k}={v}" for k, v in FAMILIES["llama"].items()))
    flags = (*model, "--data", str(text), "--seq_len", "16", "--global_batch", "4", "--steps", "2", "--no_compile")
    run = start(2, *flags, "--save_pretrained", str(text))
    assert run.end() == [EXIT_BAD_INPUT] * 2, run.log_text()
    assert f"--save_pretrained must be a folder that can be written; got {text}: it exists" in run.log_text()
    assert losses(run.run_dir) == {}


@pytest.mark.smoke
def test_a_run_resumes_and_saves_a_model_that_a_next_run_starts_from(tmp_path: Path, start: Starter) -> None:
    text = write_text(tmp_path)
    args = ",".join(f"{k}={v}" for k, v in FAMILIES["gpt2"].items()) + ",resid_pdrop=0.0,embd_pdrop=0.0,attn_pdrop=0.0"
    common = (
        "--data",
        str(text),
        "--seq_len",
        "16",
        "--global_batch",
        "8",
        "--no_compile",
        "--log_every",
        "1",
        "--lr",
        "1e-2",
    )
    saved = tmp_path / "saved"
    flags = ("--model", "hf:gpt2", "--model_args", args, "--save_pretrained", str(saved), *common)
    first = start(1, *flags, "--steps", "3")
    assert first.end() == [0], first.log_text()
    second = start(2, *flags, "--steps", "6", attempt=1)
    assert second.end() == [0, 0], second.log_text()
    assert sorted(losses(second.run_dir)) == [1, 2, 3, 4, 5, 6]
    third = start(2, "--model", f"hf:{saved}", *common, "--steps", "1", run_dir=tmp_path / "third")
    assert third.end() == [0, 0], third.log_text()
    assert "weights of" in third.log_text()
    assert losses(third.run_dir)[1] < losses(second.run_dir)[1]
