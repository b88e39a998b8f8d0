"""Training as a step of Kubeflow Pipelines; user documentation: docs/tasks/kubeflow.md.

    from muster.kfp import component_yaml, train

`component_yaml(image)` is the released component, a container of Muster's image. `train` is the same step as a
lightweight component, for local runs; it needs kfp (`pip install '/path/to/muster[kfp]'` with the
path of a clone), nothing else here does.
"""

from __future__ import annotations

from typing import Any

from muster.kfp.component import component_yaml

__all__ = ["component_yaml", "train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from muster.kfp.lightweight import train_component

        return train_component
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
