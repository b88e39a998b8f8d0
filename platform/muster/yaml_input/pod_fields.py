"""Fields unknown to Kubernetes at every depth of a pod template, of an object's metadata and of tolerations.

The names come from the OpenAPI document of one version of Kubernetes (`pod_fields.json`, written by
`tools/pod_fields.py`). A newer cluster may know newer fields: on one host an unknown field is an error, for a cluster
it is a warning, and the API server decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from muster.yaml_input.source_map import Path
from muster.yaml_input.unknown_fields import UnknownField, suggest_field

_OF_PODS = ("labels", "annotations")


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
