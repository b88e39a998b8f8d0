"""Writes what is generated: from `muster.api.spec` the CRDs, in the chart and plain, and the API reference, from
`muster.visibility` the OpenAPI document of the read API, from `muster.kfp` the component of Kubeflow Pipelines.

With --check it writes nothing, and exits with 1 when a file is not what it would write. Run by `make manifests` and
`make check`.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `python tools/manifests.py`
from tools import crdgen

from muster.kfp import component
from muster.visibility.discovery import openapi_document


def files() -> dict[str, str]:
    """Text of every generated file by path."""
    return {
        **crdgen.files(),
        "docs/reference/visibility-openapi.json": json.dumps(openapi_document(), indent=1) + "\n",
        "examples/11-kubeflow-pipeline/train.yaml": component.component_yaml(),
    }


def stale_files(root: Path) -> list[str]:
    """Return the paths of files that are missing or not as they would be written now."""
    return [name for name, text in files().items() if not (root / name).is_file() or (root / name).read_text() != text]


def main(root: Path, arguments: list[str]) -> int:
    """Write or check; return the exit code."""
    behind = stale_files(root)
    if "--check" in arguments:
        for name in behind:
            print(f"{name} is not what is generated from platform/muster; run: make manifests")
        return 1 if behind else 0
    for name in behind:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(files()[name])
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent, sys.argv[1:]))
