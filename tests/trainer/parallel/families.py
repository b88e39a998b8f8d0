"""Small models of 13 Hugging Face families, made from their configurations with random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

VOCABULARY = 97
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_DECODER = {**_SIZES, "vocab_size": VOCABULARY, "num_key_value_heads": 2, "use_cache": False}

# The names of configuration and model, and what differs from the family's defaults.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _DECODER),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _DECODER),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**_DECODER, "head_dim": 8}),
    "mistral": ("MistralConfig", "MistralForCausalLM", _DECODER),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {**_DECODER, "head_dim": 8, "sliding_window": 8}),
    "phi": ("PhiConfig", "PhiForCausalLM", _DECODER),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {**_SIZES, "vocab_size": VOCABULARY, "use_cache": False}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_DECODER, "num_local_experts": 4}),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 3,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "use_cache": False,
        },
    ),
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 6, "n_head": 4, "n_positions": 64, "use_cache": False},
    ),
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "word_embed_proj_dim": 16,
            "ffn_dim": 64,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "use_cache": False,
        },
    ),
    "bert": ("BertConfig", "BertForMaskedLM", {**_SIZES, "vocab_size": VOCABULARY}),
    "vit": ("ViTConfig", "ViTForImageClassification", {**_SIZES, "image_size": 16, "patch_size": 4}),
}
TIED = ("gemma2", "t5", "gpt2", "opt", "bert")
"""Families whose output projection is the embedding, by default."""


def build_family(family: str) -> nn.Module:
    """The model without dropout, with weights from seed 0; on the meta device within `torch.device("meta")`."""
    import torch
    import transformers

    config_name, model_name, values = FAMILIES[family]
    config = getattr(transformers, config_name)(**values, bos_token_id=1, eos_token_id=2)
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, model_name)(config)
    return model.train()


def family_batch(family: str, samples: int = 2) -> dict[str, Tensor]:
    """A micro-batch; one sample of a language model ends with padding."""
    import torch

    generator = torch.Generator().manual_seed(1)

    def tokens(length: int) -> Tensor:
        return torch.randint(3, VOCABULARY, (samples, length), generator=generator)

    if family == "vit":
        return {"pixel_values": torch.randn(samples, 3, 16, 16, generator=generator)}
    mask = torch.ones(samples, 16, dtype=torch.int64)
    mask[-1, 12:] = 0
    batch = {"input_ids": tokens(16), "attention_mask": mask}
    return {**batch, "decoder_input_ids": tokens(12)} if family == "t5" else batch


def family_loss(output: Any) -> Tensor:
    """A loss that every logit changes differently, summed over the batch."""
    import torch

    logits: Tensor = output.logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2).float(), _targets(logits), reduction="sum")


def _targets(logits: Tensor) -> Tensor:
    import torch

    return torch.arange(logits[..., 0].numel(), device=logits.device) % logits.shape[-1]
