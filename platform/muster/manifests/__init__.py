"""The CRDs, generated from `muster.spec`: schemas, defaults, CEL rules, printer columns, and the reference page.

Pure: from the models to values and text. `tools/manifests.py` writes the files.
"""

from __future__ import annotations

from muster.manifests.crds import KINDS, Kind, crd
from muster.manifests.files import files
from muster.manifests.rules import AMOUNTS, LABELS, RULES, Rule
from muster.manifests.schema import object_schema

__all__ = ["AMOUNTS", "KINDS", "LABELS", "RULES", "Kind", "Rule", "crd", "files", "object_schema"]
