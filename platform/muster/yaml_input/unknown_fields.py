"""Unknown field names, with the similar known name as a suggestion.

Muster's own types refuse every unknown field. A pod template preserves unknown fields, but a `resorces:` in it would
run a job without its GPUs, so a name similar to a field that Muster reads is refused too. `pod_fields` finds all other
unknown fields of a template.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from muster.spec.pods import ContainerResources
from muster.text import closest_match
from muster.yaml_input.source_map import Path

_GPU_MISSPELLINGS = ("gpu", "gpus", "nvidia.com/gpus", "nvidia/gpu", "nvidia/gpus", "nvidia-gpu")
_SIMILARITY = 0.6  # for a suggestion, if the field is certainly invalid
_TYPO_SIMILARITY = 0.88  # to report a field of a Kubernetes type as a typo: `resourceClaims` is not one of `resources`


@dataclass(frozen=True, slots=True)
class UnknownField:
    """An unknown field, and the path of the similar known field, if any."""

    path: Path
    suggestion: Path | None
    message: str


def unknown_fields(model: type[BaseModel], value: Any, path: Path = ()) -> Iterator[UnknownField]:
    """Every unknown field in `value`, at every depth, by the fields of `model`."""
    if not isinstance(value, dict):
        return  # validation reports the wrong type
    known = _fields(model)
    if model is ContainerResources:
        yield from _misspelled_gpus(value, path)
    open_ended = model.model_config.get("extra") == "allow"
    for key, item in value.items():
        if key in known:
            yield from _nested_unknown_fields(known[key], item, (*path, key))
            continue
        guess = suggest_field(key, known, _TYPO_SIMILARITY if open_ended else _SIMILARITY)
        if guess or not open_ended:
            hint = f"did you mean {guess!r}?" if guess else f"known here: {', '.join(known)}"
            yield UnknownField((*path, key), (*path, guess) if guess else None, f"unknown field; {hint}")


def suggest_field(key: str, known: Iterable[str], similarity: float = _SIMILARITY) -> str | None:
    """The known field that differs only in case or underscores, else the most similar one; None if none is similar."""
    names = list(known)
    same = next((name for name in names if name.lower() == str(key).replace("_", "").lower()), None)
    return same or closest_match(str(key), names, similarity)


def _misspelled_gpus(resources: dict[str, Any], path: Path) -> Iterator[UnknownField]:
    """Common misspellings of the GPU resource, which no node has."""
    for word in ("requests", "limits"):
        amounts = resources.get(word)
        for name in amounts if isinstance(amounts, dict) else ():
            if name.lower() in _GPU_MISSPELLINGS:
                yield UnknownField((*path, word, name), None, "no such resource; did you mean 'nvidia.com/gpu'?")


def _nested_unknown_fields(annotation: Any, value: Any, path: Path) -> Iterator[UnknownField]:
    model, is_list = _inner_model(annotation)
    if model is None:
        return
    if not is_list:
        yield from unknown_fields(model, value, path)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_fields(model, item, (*path, index))


@cache
def _fields(model: type[BaseModel]) -> dict[str, Any]:
    """Annotations by the field's name in YAML."""
    return {info.alias or name: info.annotation for name, info in model.model_fields.items()}


def _inner_model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model inside `Model`, `Model | None` or `list[Model]`, and whether there is a list around it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _inner_model(arguments[0])
    if origin is list:
        return _inner_model(arguments[0])[0], True
    if origin in (typing.Union, types.UnionType):
        for argument in arguments:
            model, is_list = _inner_model(argument)
            if model is not None:
                return model, is_list
    return None, False
