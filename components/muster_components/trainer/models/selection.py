"""Which model `--model` names, without torch, so that flags are checked before it is loaded."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

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
    return replace_fields(model_config(name, vocab_size=vocab_size), args)


def replace_fields(config: ModelConfig, args: Mapping[str, str]) -> ModelConfig:
    """The recipe with other values for fields of its shape. Raises InputError for an unknown field or a bad value."""
    fields = [field.name for field in dataclasses.fields(config) if field.name not in ("name", "vocab_size", "lr")]
    if unknown := [key for key in args if key not in fields]:
        raise InputError(f"--model_args: {unknown[0]!r} is not a field of {config.name}; fields: {', '.join(fields)}")
    values: dict[str, Any] = {key: override_value(key, text, getattr(config, key)) for key, text in args.items()}
    return dataclasses.replace(config, **values)


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


def override_value(key: str, text: str, current: object) -> object:
    """The value written as in Python or YAML, of the type that the field has now. Raises InputError."""
    words = {"true": True, "false": False, "null": None, "none": None}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(value, list | tuple) and isinstance(current, list | tuple):
        return type(current)(value)
    same_type = isinstance(value, bool) == isinstance(current, bool) and isinstance(value, type(current))
    if current is None or value is None or same_type or (isinstance(current, float) and type(value) is int):
        return float(value) if isinstance(current, float) and value is not None else value
    raise InputError(f"--model_args: {key} must be of type {type(current).__name__}; got {text!r}")
