"""Writes the names of the fields of a pod template, by type, from the OpenAPI document of a real API server.

The API server is that of the tests' control plane, whose version is pinned. With --check it writes nothing, and exits
with 1 when the file is not what it would write. A test on the control plane checks the same.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "platform" / "muster" / "api" / "yaml_input" / "pod_fields.json"
ROOT_TYPE = "io.k8s.api.core.v1.PodTemplateSpec"
CORE = "/openapi/v3/api/v1"
_REF = "#/components/schemas/"


def pod_template_fields(openapi: Mapping[str, Any], version: str) -> str:
    """The file's text: of every type that a pod template consists of, its fields and the type of each ("" where it has
    no fields of its own). A list or a map of a type counts as the type."""
    schemas: Mapping[str, Any] = openapi["components"]["schemas"]
    types: dict[str, dict[str, str]] = {}
    left = [ROOT_TYPE]
    while left:
        name = left.pop()
        if _short(name) in types:
            continue
        inner = {field: _type_of(schema) for field, schema in schemas[name]["properties"].items()}
        inner = {field: of if "properties" in schemas.get(of, {}) else "" for field, of in inner.items()}
        types[_short(name)] = {field: _short(of) for field, of in sorted(inner.items())}
        left += [of for of in inner.values() if of]
    return json.dumps({"kubernetes": version, "types": types}, indent=1, sort_keys=True) + "\n"


def fetch_pod_fields(api: Any) -> str:
    """The file's text as the API server behind `api` (with `get(path)`) has it."""
    version = api.get("/version")
    return pod_template_fields(api.get(CORE), f"{version['major']}.{version['minor']}")


def _type_of(schema: Mapping[str, Any]) -> str:
    """The name of the type that a field is made of; "" for text, numbers and the like."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    for inner in (*schema.get("allOf", ()), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict) and (name := _type_of(inner)):
            return name
    return ""


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def main(arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    from tests.cluster.controlplane.plane import ControlPlane

    with tempfile.TemporaryDirectory() as folder, ControlPlane.start(Path(folder)) as plane:
        text = fetch_pod_fields(plane.api)
    if "--check" in arguments:
        if text == FILE.read_text():
            return 0
        print(f"{FILE.name} is not what Kubernetes says; run: make pod-fields")
        return 1
    FILE.write_text(text)
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
