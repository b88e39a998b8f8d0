"""YAML text to objects, with an answer to "where, what, and what instead?" for everything that is wrong.

The text becomes plain values with a line for each (`located`), their field names are compared with those of
`muster.spec` (`fields`), and only then the values are validated and pydantic's findings put into words (`complaints`).
All findings of a text are told at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from pydantic import ValidationError

from muster.documents.complaints import Complaint, explain, split_field, written
from muster.documents.fields import unknown_fields
from muster.documents.located import Located, parse_located, shortened
from muster.documents.pod_fields import unknown_to_kubernetes
from muster.errors import InvalidSpec
from muster.nearest import meant
from muster.spec import API_VERSION, Flavor, Queue, TrainingJob
from muster.variables import is_hidden

__all__ = ["KINDS", "Object", "Placed", "load_documents", "load_placed"]

Object: TypeAlias = TrainingJob | Queue | Flavor
KINDS: dict[str, type[TrainingJob | Queue | Flavor]] = {
    "TrainingJob": TrainingJob,
    "Queue": Queue,
    "Flavor": Flavor,
}
_MOST_SHOWN = 12
_MOST_SOUGHT = 100  # of each kind in an object, and in a text: to find all in a text of megabytes takes long
_SERVER_OWNED = ("uid", "generation", "resourceVersion", "creationTimestamp", "deletionTimestamp", "finalizers")


@dataclass(frozen=True, slots=True)
class Placed:
    """An object, and where it is written. `doubts` are fields of Kubernetes that this Muster does not know, as
    `source:line: field: sentence`."""

    item: Object
    source: str
    document: Located
    doubts: tuple[str, ...] = ()

    def place(self, field: str) -> str:
        """`source:line` of a field, or of the nearest one above it that is written; without one, of the object."""
        return f"{self.source}:{self.document.line(split_field(field) or ('metadata', 'name'))}"


def load_documents(text: str | bytes, source: str = "input") -> list[Object]:
    """The objects of `load_placed`, without their places."""
    return [placed.item for placed in load_placed(text, source)]


def load_placed(text: str | bytes, source: str = "input", *, newer: bool = False) -> list[Placed]:
    """All objects of a multi-document YAML (or JSON) text, in order; empty documents are skipped.

    A field of a pod template that Kubernetes does not know, as far as this Muster knows Kubernetes, is an error; with
    `newer`, where a newer cluster may know it, one of the object's `doubts`.

    Raises `InvalidSpec` whose text lists what is wrong as `source:line: field: value; what would be right`, and whose
    `field` is the first one's path. `status` and what a server fills into `metadata` are ignored, so that the output
    of `muster describe --json` can be submitted again, unless values of variables are hidden in it.
    """
    found: list[Placed] = []
    complaints: list[Complaint] = []
    first_lines: dict[tuple[str, str, str], int] = {}
    for document in parse_located(text, source):
        if document.value is None:
            continue
        if len(complaints) >= _MOST_SOUGHT:
            break
        model, wrong = _model(document)
        complaints += wrong
        if model is None:
            continue
        item, wrong = _validated(model, document)
        complaints += wrong
        seen = {one.path for one in wrong}
        doubts = [
            Complaint(field.path, document.line(field.path), field.message)
            for field in islice(unknown_to_kubernetes(document.value), _MOST_SOUGHT)
            if field.path not in seen
        ]
        complaints += [] if newer else doubts
        if item is None:
            continue
        complaints += _hidden_values(item, document)
        key = (item.kind, item.metadata.namespace or "", item.metadata.name)
        line = document.line(("metadata", "name"))
        if key in first_lines:
            told = f"{item.kind} {item.metadata.name!r} is already at line {first_lines[key]}; keep one of them"
            complaints.append(Complaint(("metadata", "name"), line, told))
        first_lines.setdefault(key, line)
        found.append(Placed(item, source, document, tuple(_told(doubts, source)) if newer else ()))
    if complaints:
        raise _invalid(complaints, source)
    if not found:
        raise InvalidSpec(f"{source}: no object in it; write at least one of {', '.join(KINDS)}")
    return found


def _model(document: Located) -> tuple[type[Object] | None, list[Complaint]]:
    """The class that the document claims to be, and what the names of its fields show wrong."""
    value, line = document.value, document.line
    if not isinstance(value, dict):
        return None, [Complaint((), line(()), f"{written(value)} is no object; write apiVersion, kind, metadata, spec")]
    wrong = []
    version, kind = value.get("apiVersion"), value.get("kind")
    if version != API_VERSION:
        told = "missing" if version is None else f"{written(version)} is not known"
        wrong.append(Complaint(("apiVersion",), line(("apiVersion",)), f"{told}; write {API_VERSION}"))
    if not isinstance(kind, str) or kind not in KINDS:
        told = "missing" if kind is None else f"{written(kind)} is not known"
        right = meant(str(kind), KINDS, f"write one of {', '.join(KINDS)}")
        return None, [*wrong, Complaint(("kind",), line(("kind",)), f"{told}; {right}")]
    return KINDS[kind], wrong


def _validated(model: type[Object], document: Located) -> tuple[Object | None, list[Complaint]]:
    """The object, or all that is wrong with its fields."""
    unknown = list(islice(unknown_fields(model, document.value), _MOST_SOUGHT))
    meant = {field.meant for field in unknown}
    complaints = [Complaint(field.path, document.line(field.path), field.message) for field in unknown]
    try:
        return model.model_validate(_without_server_fields(document.value), strict=True), complaints
    except ValidationError as error:
        for finding in error.errors(include_url=False)[:_MOST_SOUGHT]:
            told_already = finding["loc"] == ("apiVersion",) or (
                finding["type"] == "missing" and finding["loc"] in meant
            )
            if finding["type"] != "extra_forbidden" and not told_already:
                complaints.append(explain(finding, document))
        return None, complaints


def _hidden_values(item: Object, document: Located) -> list[Complaint]:
    """A complaint about each variable of a job whose value was hidden when the job was printed."""
    found = []
    for role, wanted in enumerate(item.spec.roles if isinstance(item, TrainingJob) else ()):
        pod = wanted.template.spec
        for kind, containers in (("containers", pod.containers), ("initContainers", pod.init_containers)):
            for index, container in enumerate(containers):
                for place, variable in enumerate(container.env):
                    if is_hidden(variable.value or ""):
                        path = ("spec", "roles", role, "template", "spec", kind, index, "env", place, "value")
                        message = (
                            f"must be the value of {variable.name}; got {variable.value!r}, as secrets are printed"
                        )
                        found.append(Complaint(path, document.line(path), message))
    return found


def _without_server_fields(value: dict[str, Any]) -> dict[str, Any]:
    kept = {key: item for key, item in value.items() if key != "status"}
    if isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {key: item for key, item in kept["metadata"].items() if key not in _SERVER_OWNED}
    return kept


def _told(complaints: list[Complaint], source: str) -> list[str]:
    return [
        shortened(f"{source}:{item.line}: {item.field + ': ' if item.field else ''}{item.message}")
        for item in complaints
    ]


def _invalid(complaints: list[Complaint], source: str) -> InvalidSpec:
    complaints = sorted(complaints, key=lambda item: item.line)
    shown = _told(complaints, source)
    if len(shown) > _MOST_SHOWN:
        least = "at least " if len(shown) >= _MOST_SOUGHT else ""
        shown = [*shown[:_MOST_SHOWN], f"... and {least}{len(shown) - _MOST_SHOWN} more"]
    return InvalidSpec("\n".join(shown), field=complaints[0].field)
