"""Objects of other kinds in the files of `muster submit`: their queue, and what the options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.api.yaml_input import KINDS
from muster.api.yaml_input.source_map import parse_yaml
from muster.cli.manifests import SpecOverrides
from muster.cli.output import console, print_json
from muster.client import ClusterClient
from muster.errors import InvalidSpec
from muster.kinds.suspended.table import PRIORITY_ANNOTATION, QUEUE_LABEL


def read_other_kinds(texts: Sequence[tuple[str, bytes]], overrides: SpecOverrides) -> list[dict[str, Any]]:
    """The objects of files, (name, text) each, with the options applied; empty if they have objects of Muster's own
    kinds. Raises `InvalidSpec` for files that have both, and for an option that these objects do not have."""
    documents = [
        (f"{source}:{one.line(('metadata',))}", one.value)
        for source, text in texts
        for one in parse_yaml(text, source)
        if one.value is not None
    ]
    others = [(place, value) for place, value in documents if _is_of_another_kind(value)]
    if not others:
        return []
    place, first = others[0]
    if len(others) < len(documents):
        raise InvalidSpec(
            f"{place}: kind: a {first['kind']} must not be submitted together with TrainingJobs", field="kind"
        )
    given = {"--max-runtime": overrides.max_runtime, "--trace-steps": overrides.trace_steps}
    for option, value in {**given, "--env": [*overrides.pass_names, *overrides.variables]}.items():
        if value:
            raise InvalidSpec(f"{option}: is for TrainingJobs; {place} is a {first['kind']}", field=option)
    return [_with_overrides(value, place, overrides) for place, value in others]


def submit_other_kinds(client: ClusterClient, documents: list[dict[str, Any]], *, dry_run: bool, as_json: bool) -> None:
    """Submit them, and say so."""
    accepted = client.submit_objects(documents, dry_run)
    if as_json:
        print_json(accepted)
        return
    result = "would be submitted" if dry_run else "submitted"
    for one in accepted:
        meta = one["metadata"]
        name = f"{one['kind'].lower()} {meta['namespace']}/{meta['name']}"
        console().print(f"{name} {result} to queue {meta['labels'][QUEUE_LABEL]}", soft_wrap=True)


def _is_of_another_kind(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("kind") in KINDS:
        return False
    version, kind = value.get("apiVersion"), value.get("kind")
    return isinstance(version, str) and isinstance(kind, str) and not version.startswith("muster.dev/")


def _with_overrides(value: dict[str, Any], place: str, overrides: SpecOverrides) -> dict[str, Any]:
    meta: Any = value.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
        raise InvalidSpec(f"{place}: metadata.name: must be set", field="metadata.name")
    labels, annotations = _texts(meta, "labels", place), _texts(meta, "annotations", place)
    if overrides.queue is not None:
        labels[QUEUE_LABEL] = overrides.queue
    if overrides.priority is not None:
        annotations[PRIORITY_ANNOTATION] = str(overrides.priority)
    if QUEUE_LABEL not in labels:
        field = f"metadata.labels[{QUEUE_LABEL}]"
        raise InvalidSpec(f"{place}: {field}: must name the queue, or use --queue", field=field)
    meta = {**meta, "labels": labels, **({"annotations": annotations} if annotations else {})}
    if overrides.namespace is not None:
        meta["namespace"] = overrides.namespace
    return {**value, "metadata": meta}


def _texts(meta: Mapping[str, Any], field: str, place: str) -> dict[str, str]:
    found = meta.get(field) or {}
    if not isinstance(found, dict):
        raise InvalidSpec(f"{place}: metadata.{field}: must be a mapping; got {found!r}", field=f"metadata.{field}")
    return dict(found)
