"""Jobs that examples and pages write for a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.api.pod_security import NO_VIOLATIONS, pod_security_violations

ROOT = Path(__file__).resolve().parents[2]


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    """The pod templates with an image, which only clusters use: of files, and of the blocks of pages."""
    texts = {path: path.read_text() for path in (ROOT / "examples").glob("*/*.yaml")}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        blocks = re.findall(r"^apiVersion: muster\.dev/v1alpha1\nkind: TrainingJob\n.*?(?=^(?:```|END|EOF)$)",
                            page.read_text(), re.MULTILINE | re.DOTALL)  # fmt: skip
        texts |= {Path(f"{page}-{number}"): block for number, block in enumerate(blocks)}
    for path, text in texts.items():
        for document in yaml.safe_load_all(text):
            if document and document.get("kind") == "TrainingJob":
                for role in document["spec"]["roles"]:
                    if any("image" in one for one in role["template"]["spec"]["containers"]):
                        yield f"{path.relative_to(ROOT)}", role["template"]


FOUND = [(name, template) for name, template in templates() if not name.endswith("wrong.yaml")]


@pytest.mark.parametrize(("name", "template"), FOUND, ids=[name for name, _ in FOUND])
def test_it_passes_the_restricted_pod_security_standard(name: str, template: dict[str, Any]) -> None:
    assert pod_security_violations(template) is NO_VIOLATIONS


def test_they_are_found_in_examples_and_in_pages() -> None:
    assert {"examples/05-helm-values/job.yaml", "docs/start/install.md-0", "docs/start/quick-start-gpu.md-0"} <= dict(
        FOUND
    ).keys()
