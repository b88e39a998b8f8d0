"""The generated files: every field of the models is in them, in the form that the API server asks of a CRD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from tools.crdgen import KINDS, CustomResource, crd, files
from tools.crdgen.schema import Schema
from tools.manifests import main, stale_files

from muster.api.spec import ExtensibleModel, StatusModel, StrictModel

ROOT = Path(__file__).resolve().parent.parent.parent
APPLY_LIMIT = 262_144  # bytes of the annotation in which client-side apply keeps what it applied

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def schema_of(kind: CustomResource) -> Schema:
    (version,) = crd(kind)["spec"]["versions"]
    schema: Schema = version["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: Schema) -> Iterator[Schema]:
    yield schema
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, dict):
            yield from nodes(child)


def models(kind: CustomResource) -> list[type[BaseModel]]:
    """What the kind's spec and status are made of."""
    parts = kind.model.model_json_schema()["$defs"].keys() - {"ObjectMeta"}
    return [model for base in (StrictModel, ExtensibleModel) for model in below(base) if model.__name__ in parts]


def below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from below(child)


@every_kind
def test_every_field_of_the_models_is_in_the_schema_with_what_it_means(kind: CustomResource) -> None:
    shapes = [node for node in nodes(schema_of(kind)) if "properties" in node]
    assert models(kind)
    for model in models(kind):
        names = {field.alias or name for name, field in model.model_fields.items()}
        found = [shape["properties"] for shape in shapes if shape["properties"].keys() == names]
        assert found, f"{model.__name__} is nowhere in the schema"
        assert [name for shape in found for name, field in shape.items() if not field.get("description")] == []


@every_kind
def test_the_schema_is_structural(kind: CustomResource) -> None:
    for node in nodes(schema_of(kind)):
        assert ("type" in node) != node.get("x-kubernetes-int-or-string", False)
        assert not {"$ref", "title", "$defs", "const", "oneOf", "allOf"} & node.keys()
        if node.get("type") == "array":
            assert "items" in node
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"]


@every_kind
def test_a_status_has_no_defaults_and_drops_what_it_does_not_declare(kind: CustomResource) -> None:
    status = schema_of(kind)["properties"]["status"]
    array = status.get("properties", {}).get("array")
    if array is not None:  # what an index has in common with a job is declared there
        del array["properties"]["active"]["additionalProperties"]
    for node in nodes(status):
        assert "default" not in node
        assert "x-kubernetes-preserve-unknown-fields" not in node


def test_unknown_fields_are_kept_in_pod_templates_and_where_kubernetes_objects_are_parts() -> None:
    (jobs, queues, flavors, captures, _workloads) = (schema_of(kind) for kind in KINDS)
    template = jobs["properties"]["spec"]["properties"]["roles"]["items"]["properties"]["template"]
    kept = [node for node in nodes(jobs["properties"]["spec"]) if node.get("x-kubernetes-preserve-unknown-fields")]
    assert template["x-kubernetes-preserve-unknown-fields"]
    assert all(any(node is inner for inner in nodes(template)) for node in kept)
    assert not any("x-kubernetes-preserve-unknown-fields" in node for node in (*nodes(queues), *nodes(captures)))
    assert [node["description"] for node in nodes(flavors) if node.get("x-kubernetes-preserve-unknown-fields")] == [
        "A taint of nodes that the pod accepts."
    ]
    assert not issubclass(StatusModel, StrictModel)


@every_kind
def test_rules_look_only_where_lists_and_maps_are_bounded(kind: CustomResource) -> None:
    """The API server refuses a CRD whose rules could cost too much; a bound that is forgotten shows here first."""

    def unbounded(node: Schema, path: str) -> Iterator[str]:
        ruled = any("x-kubernetes-validations" in below for below in nodes(node))
        if ruled and node.get("type") == "array" and "maxItems" not in node:
            yield path
        if "x-kubernetes-validations" in node and "additionalProperties" in node and "maxProperties" not in node:
            yield path
        for name, child in node.get("properties", {}).items():
            yield from unbounded(child, f"{path}.{name}")
        if "items" in node:
            yield from unbounded(node["items"], f"{path}[]")

    assert list(unbounded(schema_of(kind), kind.name)) == []


@every_kind
def test_the_crd_is_far_below_the_size_limit_of_kubectl_apply(kind: CustomResource) -> None:
    assert len(json.dumps(crd(kind))) < APPLY_LIMIT / 4


def test_the_same_crds_are_in_the_chart_and_in_the_plain_file() -> None:
    written = files()
    plain = list(yaml.safe_load_all(written["helm/crds.yaml"]))
    assert [item["metadata"]["name"] for item in plain] == [f"{kind.plural}.muster.dev" for kind in KINDS]
    for item, kind in zip(plain, KINDS, strict=True):
        spec = written[f"helm/muster/templates/crds/{kind.plural}.yaml"].partition("\nspec:\n")[2]
        assert yaml.safe_load("spec:\n" + spec.removesuffix("{{- end }}\n")) == {"spec": item["spec"]}


@every_kind
def test_the_reference_page_has_every_field_and_every_rule(kind: CustomResource) -> None:
    page = files()["docs/reference/api.md"]
    section = page.partition(f"\n## {kind.name}\n")[2].partition("\n## ")[0]

    def paths(schema: Schema, path: str) -> Iterator[str]:
        for name, field in schema.get("properties", {}).items():
            yield f"{path}.{name}"
            yield from paths(field, f"{path}.{name}")
            yield from paths(field.get("items", {}), f"{path}.{name}[]")

    parts = schema_of(kind)["properties"]
    wanted = {*paths(parts["spec"], "spec"), *paths(parts["status"], "status")}
    assert {path for path in wanted if f"| `{path}` |" not in section} == set()
    rules: list[dict[str, Any]] = [
        rule for node in nodes(schema_of(kind)) for rule in node.get("x-kubernetes-validations", ())
    ]
    assert {rule["message"] for rule in rules if rule["message"] not in section} <= {
        "each amount must be less than 2^62"
    }


def test_what_is_committed_is_what_the_models_say() -> None:
    assert stale_files(ROOT) == []


def test_a_stale_file_is_named_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path, []) == 0
    assert main(tmp_path, ["--check"]) == 0
    capsys.readouterr()
    (tmp_path / "docs" / "reference" / "api.md").write_text("old")
    (tmp_path / "helm" / "crds.yaml").unlink()
    assert main(tmp_path, ["--check"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"{name} is not what is generated from platform/muster; run: make manifests"
        for name in ("helm/crds.yaml", "docs/reference/api.md")
    ]
    assert (tmp_path / "docs" / "reference" / "api.md").read_text() == "old"
    assert main(tmp_path, []) == 0
    assert stale_files(tmp_path) == []
