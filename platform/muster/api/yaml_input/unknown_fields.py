"""Unknown field names, with the similar known name as a suggestion.

Muster's own types refuse every unknown field. A pod template preserves unknown fields, but a `resorces:` in it would
run a job without its GPUs, so a name similar to a field that Muster reads is refused too. All other unknown fields of a
template, of metadata and of tolerations are found by the OpenAPI document of one version of Kubernetes
(`pod_fields.json`, written by `tools/pod_fields.py`). A newer cluster may know newer fields: on one host such a field
is an error, for a cluster it is a warning, and the API server decides.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import BaseModel

from muster.api.spec.pods import ContainerResources
from muster.api.yaml_input.source_map import Path
from muster.text import closest_match

_GPU_MISSPELLINGS = ("gpu", "gpus", "nvidia.com/gpus", "nvidia/gpu", "nvidia/gpus", "nvidia-gpu")
_SIMILARITY = 0.6  # for a suggestion, if the field is certainly invalid
_TYPO_SIMILARITY = 0.88  # to report a field of a Kubernetes type as a typo: `resourceClaims` is not one of `resources`
_OF_PODS = ("labels", "annotations")


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


def unknown_to_kubernetes(document: Any) -> Iterator[UnknownField]:
    """Every field of a TrainingJob, Queue or Flavor that is passed to Kubernetes and that Kubernetes does not know."""
    yield from unknown_in("ObjectMeta", _get(document, "metadata"), ("metadata",))
    spec = _get(document, "spec")
    yield from unknown_in("Toleration", _get(spec, "tolerations"), ("spec", "tolerations"))
    roles = _get(spec, "roles")
    for index, role in enumerate(roles if isinstance(roles, list) else ()):
        place = ("spec", "roles", index, "template")
        yield from unknown_in_template(_get(role, "template"), place)


def unknown_in_template(template: Any, path: Path) -> Iterator[UnknownField]:
    """Every unknown field of a pod template, and fields of its metadata that are not copied to pods."""
    yield from unknown_in("PodTemplateSpec", template, path)
    metadata = _get(template, "metadata")
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        if key in _pod_fields()["types"]["ObjectMeta"] and key not in _OF_PODS and value is not None:
            message = f"is not copied to the pods: only {' and '.join(_OF_PODS)} of a template's metadata are"
            yield UnknownField((*path, "metadata", key), None, f"{message}; leave it out")


def unknown_in(kind: str, value: Any, path: Path = ()) -> Iterator[UnknownField]:
    """Every unknown field of a value, or of a list of values, of a Kubernetes type such as Container."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from unknown_in(kind, item, (*path, index))
    if not isinstance(value, dict):
        return  # validation reports the wrong type
    known = _pod_fields()["types"][kind]
    for key, item in value.items():
        if known.get(key):
            yield from unknown_in(known[key], item, (*path, key))
        elif key not in known:
            guess = suggest_field(key, known)
            hint = (
                f"did you mean {guess!r}?" if guess else f"Kubernetes {_pod_fields()['kubernetes']} has no such field"
            )
            yield UnknownField((*path, key), (*path, guess) if guess else None, f"unknown field of {kind}; {hint}")


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


@cache
def _pod_fields() -> Mapping[str, Any]:
    """`kubernetes`: the version; `types`: by type, the type of each field."""
    pinned: Mapping[str, Any] = json.loads(files(__package__).joinpath("pod_fields.json").read_text())
    return pinned
