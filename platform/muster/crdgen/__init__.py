"""Generation of the CRDs (schemas, defaults, CEL rules, printer columns) and of docs/api.md from `muster.spec`.

Pure functions from the models to values and text; `tools/manifests.py` writes the files.
"""

from __future__ import annotations

from muster.crdgen.crds import KINDS, CustomResource, crd
from muster.crdgen.files import files
from muster.crdgen.rules import LABEL_RULES, QUANTITY_RULES, VALIDATION_RULES, ValidationRule
from muster.crdgen.schema import object_schema

__all__ = [
    "KINDS",
    "LABEL_RULES",
    "QUANTITY_RULES",
    "VALIDATION_RULES",
    "CustomResource",
    "ValidationRule",
    "crd",
    "files",
    "object_schema",
]
