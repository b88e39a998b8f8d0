"""Recipes in the layout of Hugging Face: `LlamaForCausalLM` in modern style, `GPT2LMHeadModel` in GPT-2's.

Each tensor of a recipe is one or several of the folder: attention's matrix is split into queries, keys and values, and
GPT-2 stores matrices transposed. GPT-2 of Transformers always has biases; of a recipe without, they are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.module_tree import unique_tensors
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.safetensors_files import Conversion, NamePlan, SafetensorsFolder
from muster_components.trainer.regular_files import read_json

NORM_EPS: Final = 1e-5
_MAX_CONFIG_BYTES: Final = 1 << 20
_SHOWN: Final = 3
_COMPARED: Final = (
    *("model_type", "num_attention_heads", "num_key_value_heads", "n_head", "rope_theta", "rope_type"),
    *("hidden_act", "activation_function", "rms_norm_eps", "layer_norm_epsilon"),
)
"""Fields of a configuration that change what tensors of the same shapes compute."""
_QKV: Final = "attention.qkv"
_LLAMA: Final = {
    "embed": "model.embed_tokens",
    "head.norm": "model.norm",
    "head.out": "lm_head",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "attention.out": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_GPT2: Final = {
    "embed": "transformer.wte",
    "positions": "transformer.wpe",
    "head.norm": "transformer.ln_f",
    "head.out": "lm_head",
    "attention_norm": "ln_1",
    "feed_forward_norm": "ln_2",
    _QKV: "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_TRANSPOSED: Final = frozenset({_QKV, "attention.out", "feed_forward.up", "feed_forward.down"})
"""Of GPT-2."""


def huggingface_config(config: ModelConfig, seq_len: int) -> dict[str, Any]:
    """The content of `config.json`. Raises InputError for a recipe that no class of Transformers has."""
    common = {"vocab_size": config.vocab_size, "tie_word_embeddings": config.tied, "dtype": "float32"}
    if config.style == "modern":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": config.dim,
            "intermediate_size": config.hidden,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "max_position_embeddings": seq_len,
            "hidden_act": "silu",
            "rms_norm_eps": NORM_EPS,
            "rope_theta": config.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "attention_bias": config.bias,
            "mlp_bias": config.bias,
            "bos_token_id": None,
            "eos_token_id": None,
            **common,
        }
    if config.kv_heads != config.heads:
        raise InputError(
            f"{config.name} has no layout of Hugging Face: GPT2LMHeadModel needs kv_heads of {config.heads}, its heads;"
            f" got {config.kv_heads}"
        )
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": config.dim,
        "n_inner": config.hidden,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_positions": seq_len,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": NORM_EPS,
        **{f"{name}_pdrop": config.dropout for name in ("attn", "embd", "resid")},
        "bos_token_id": None,
        "eos_token_id": None,
        **common,
    }


def to_huggingface(config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a recipe, by their names in the folder."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        inner, prefix, kind = _place(config, name)
        if inner == _QKV and config.style == "modern":
            parts = zip("qkv", _split_qkv(config, tensor), strict=True)
            found.update({f"{prefix}self_attn.{part}_proj.{kind}": one.contiguous() for part, one in parts})
            continue
        target = f"{prefix}{(_LLAMA if config.style == 'modern' else _GPT2)[inner]}"
        if inner == _QKV:
            tensor = torch.cat(_split_qkv(config, tensor))
        if kind == "weight" and _lacks_bias(config, inner):
            found[f"{target}.bias"] = tensor.new_zeros(tensor.shape[0])
        if kind == "weight" and config.style == "gpt2" and inner in _TRANSPOSED:
            tensor = tensor.t()
        found[f"{target}.{kind}"] = tensor.contiguous()
    return found


def recipe_plan(config: ModelConfig, whole: nn.Module, source: SafetensorsFolder) -> NamePlan:
    """Which tensors of a folder make those of a recipe; `whole`: the model, on the meta device. Raises InputError if
    the folder is of another model: by its `config.json`, or by names and shapes of its tensors."""
    seq_len = getattr(whole, "seq_len", 1)
    _check_config(huggingface_config(config, seq_len), source.folder)
    made = {name: to_huggingface(config, {name: tensor}) for name, tensor in unique_tensors(whole)}
    expected = {name: tensor.shape for of_one in made.values() for name, tensor in of_one.items()}
    saved = {_with_prefix(name, expected): name for name in source.shapes}
    optional = {name for name in expected if name.endswith(".bias") and not config.bias} | {
        name for name in expected if name.endswith("gate_proj.bias")
    }
    ignored = {name for name in saved if name.endswith((".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"))}
    ignored |= {"lm_head.weight"} if config.tied else set()
    problems = {
        "missing": [name for name in expected if name not in saved and name not in optional],
        "of another shape": [
            f"{name} {source.shapes[saved[name]]} instead of {tuple(shape)}"
            for name, shape in expected.items()
            if name in saved and source.shapes[saved[name]] != tuple(shape)
        ],
        "not in the model": [name for name in saved if name not in expected and name not in ignored],
    }
    if any(problems.values()):
        shown = [
            f"{what}: {', '.join(names[:_SHOWN])}" + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
            for what, names in problems.items()
            if names
        ]
        raise InputError(f"the tensors of {source.folder} do not match {config.name}; {'; '.join(shown)}")
    _require_zero(source, [saved[name] for name in optional if name in saved], config)
    conversions = tuple(
        Conversion(tuple(saved[one] for one in of_one if one in saved), (name,), _inverse(config, name, saved))
        for name, of_one in made.items()
    )
    return NamePlan({}, conversions, frozenset(saved[name] for name in ignored if name in saved))


def _inverse(
    config: ModelConfig, name: str, saved: Mapping[str, str]
) -> Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]:
    inner, prefix, kind = _place(config, name)

    def run(read: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if inner == _QKV and config.style == "modern":
            parts = [read[saved[f"{prefix}self_attn.{part}_proj.{kind}"]] for part in "qkv"]
            return {name: _merge_qkv(config, *parts)}
        tensor = read[saved[f"{prefix}{(_LLAMA if config.style == 'modern' else _GPT2)[inner]}.{kind}"]]
        if kind == "weight" and config.style == "gpt2" and inner in _TRANSPOSED:
            tensor = tensor.t()
        return {name: _merge_qkv(config, *tensor.chunk(3)) if inner == _QKV else tensor}

    return run


def _place(config: ModelConfig, name: str) -> tuple[str, str, str]:
    """The module of a tensor within its block, the prefix of the block in the folder, and `weight` or `bias`."""
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return module, "", kind
    _, number, inner = module.split(".", 2)
    return inner, f"{'model.layers' if config.style == 'modern' else 'transformer.h'}.{number}.", kind


def _split_qkv(config: ModelConfig, tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of queries, keys and values; see `Attention`."""
    group = config.heads // config.kv_heads
    heads = tensor.reshape(config.kv_heads, group + 2, config.head_dim, *tensor.shape[1:])
    return heads[:, :group].flatten(0, 2), heads[:, group].flatten(0, 1), heads[:, group + 1].flatten(0, 1)


def _merge_qkv(config: ModelConfig, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = (part.reshape(config.kv_heads, -1, config.head_dim, *part.shape[1:]) for part in (query, key, value))
    return torch.cat(list(parts), dim=1).flatten(0, 2)


def _lacks_bias(config: ModelConfig, inner: str) -> bool:
    """Whether the class of Transformers has a bias there, and the recipe has none."""
    if config.style == "modern":
        return config.bias and inner == "feed_forward.gate"
    return not config.bias and (inner in _TRANSPOSED or inner.endswith("norm"))


def _with_prefix(name: str, expected: Mapping[str, object]) -> str:
    """The whole model's name of a tensor that may be saved under that of the base model."""
    return next((f"{prefix}{name}" for prefix in ("", "model.", "transformer.") if f"{prefix}{name}" in expected), name)


def _require_zero(source: SafetensorsFolder, names: list[str], config: ModelConfig) -> None:
    for name, read in source.read(names):
        if bool(read((slice(None),)).any()):
            raise InputError(f"{source.folder}: {name} must be zero, since {config.name} has no such bias")


def _check_config(expected: Mapping[str, Any], folder: Path) -> None:
    """Raises InputError if `config.json` is of a model that computes something else from tensors of the same shapes."""
    try:
        found = read_json(folder / "config.json", _MAX_CONFIG_BYTES)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{folder / 'config.json'} must be a JSON object")
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    flat = {**found, "rope_theta": rope.get("rope_theta", found.get("rope_theta", 10_000.0))}
    flat["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    wanted = {**expected, "rope_type": "default"}
    differing = [
        f"{name} is {flat[name]!r} and must be {wanted[name]!r}"
        for name in _COMPARED
        if name in wanted and flat.get(name) is not None and flat[name] != wanted[name]
    ]
    if differing:
        raise InputError(f"{folder / 'config.json'} is of another model: {'; '.join(differing)}")
