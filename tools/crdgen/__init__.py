"""Generates the CRDs (schemas, defaults, CEL rules, printer columns) and docs/reference/api.md from `muster.api.spec`.

Pure functions from the models to values and text; `tools/manifests.py` writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import yaml
from tools.crdgen.api_reference import api_reference
from tools.crdgen.crds import KINDS, CustomResource, crd
from tools.crdgen.rules import LABEL_RULES, QUANTITY_RULES, VALIDATION_RULES

__all__ = [
    "KINDS",
    "LABEL_RULES",
    "QUANTITY_RULES",
    "VALIDATION_RULES",
    "CustomResource",
    "crd",
    "files",
]
_PLAIN = "# Written by `make manifests` from platform/muster/api/spec. Without Helm: kubectl apply -f helm/crds.yaml\n"
_CHART = """\
{{- /* Written by `make manifests` from platform/muster/api/spec. */ -}}
{{- if .Values.crds.enabled }}
"""
_CHART_METADATA = """\
  annotations:
    helm.sh/resource-policy: keep
  labels:
    {{- include "muster.labels" . | nindent 4 }}
"""


@cache
def files() -> Mapping[str, str]:
    """Text by path."""
    chart = {f"helm/muster/templates/crds/{kind.plural}.yaml": _in_chart(crd(kind)) for kind in KINDS}
    plain = _PLAIN + "---\n".join(_yaml(crd(kind)) for kind in KINDS)
    return MappingProxyType({**chart, "helm/crds.yaml": plain, "docs/reference/api.md": api_reference()})


def _in_chart(manifest: dict[str, Any]) -> str:
    """The CRD as a Helm template, kept when the release is uninstalled: deleting a CRD deletes all its objects."""
    text = _yaml(manifest)
    if "{{" in text:
        raise ValueError("descriptions and rules must not contain {{, which Helm would expand")
    name = f"  name: {manifest['metadata']['name']}\n"
    return f"{_CHART}{text.replace(name, name + _CHART_METADATA, 1)}{{{{- end }}}}\n"


def _yaml(manifest: dict[str, Any]) -> str:
    return yaml.safe_dump(manifest, sort_keys=False, width=120, allow_unicode=True)
