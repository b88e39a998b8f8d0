"""Which model `--model` names, without torch, so that flags are checked before it is loaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from muster_components.trainer.errors import InputError
from muster_components.trainer.models.recipes import ModelConfig, model_config
from muster_components.trainer.user_code import is_reference

HUGGINGFACE: Final = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceSource:
    """`hf:SOURCE`: a model type of Transformers or a local folder; `args` replaces fields of its configuration."""

    source: str
    args: tuple[tuple[str, str], ...] = ()
    lr: float = 3e-4

    @property
    def name(self) -> str:
        """As given."""
        return f"{HUGGINGFACE}{self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorySource:
    """`my.module:factory`: a function that returns the module; `args` are its keyword arguments."""

    name: str
    args: tuple[tuple[str, str], ...] = ()
    lr: float = 3e-4


ModelSource = ModelConfig | HuggingFaceSource | FactorySource


def model_source(name: str, *, model_args: str = "", vocab_size: int | None = None) -> ModelSource:
    """The model called `name`. Raises InputError for an unknown recipe, or arguments that it does not take."""
    args = parse_model_args(model_args)
    if name.startswith(HUGGINGFACE):
        if len(name) == len(HUGGINGFACE):
            raise InputError("--model hf: must be followed by a model type, such as hf:llama, or a local folder")
        if vocab_size is not None:
            args["vocab_size"] = str(vocab_size)
        return HuggingFaceSource(source=name.removeprefix(HUGGINGFACE), args=tuple(args.items()))
    if is_reference(name) and not name.startswith(("gpt:", "gpt2:", "llama:")):
        if vocab_size is not None:
            raise InputError(f"--vocab_size is for recipes and hf: models; use --model_args with --model {name}")
        return FactorySource(name=name, args=tuple(args.items()))
    if args:
        raise InputError(f"--model_args is for hf: models and factories; got {model_args!r} with --model {name}")
    return model_config(name, vocab_size=vocab_size)


def parse_model_args(text: str) -> dict[str, str]:
    """`a=1,b=[2,3]` as {"a": "1", "b": "[2,3]"}: commas inside of brackets do not separate. Raises InputError."""
    args: dict[str, str] = {}
    for pair in re.findall(r"(?:[^,\[(]|\[[^\]]*\]|\([^)]*\)|[\[(])+", text):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"--model_args must be KEY=VALUE,...; got {pair!r}")
        if key.strip() in args:
            raise InputError(f"--model_args has {key.strip()!r} twice")
        args[key.strip()] = value.strip()
    return args
