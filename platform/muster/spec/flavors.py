"""Flavor: a kind of node, and how nodes of that kind are wired."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.spec.fields import LabelKey, Labels, ListMapKey, Name
from muster.spec.meta import Condition, ObjectMeta, StatusModel, StrictModel
from muster.spec.pods import Tolerations


class TopologyLevel(StrictModel):
    """One level of the topology."""

    name: Name
    """The level's name, e.g. rack."""
    node_label: LabelKey
    """The node label that tells the domain."""


class FlavorSpec(StrictModel):
    """Which nodes are of this kind, what pods on them tolerate, how they are wired (widest level first)."""

    node_labels: Labels = {}
    """Nodes with all these labels are of this kind; left out: every node."""
    tolerations: Tolerations = []
    """What every pod placed here tolerates."""
    topology: Annotated[list[TopologyLevel], Field(max_length=16), ListMapKey("name", "give every level its own")] = []
    """Levels, widest first."""

    @model_validator(mode="after")
    def _labels_once(self) -> FlavorSpec:
        labels = [level.node_label for level in self.topology]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"topology: the nodeLabel {twice[0]!r} is used twice; give every level its own")
        return self


class FlavorStatus(StatusModel):
    """Conditions: Overlapping, a node that matches two flavors belongs to neither; Valid, if it ever was not."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Overlapping: True while some nodes match this flavor and another; they are used for neither. Valid: False
    while the operator cannot read the flavor, which takes nothing then."""


class Flavor(StrictModel):
    """A kind of node."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Flavor"] = "Flavor"
    metadata: ObjectMeta
    spec: FlavorSpec = FlavorSpec()
    """Which nodes are of this kind."""
    status: FlavorStatus = FlavorStatus()
    """How the flavor stands."""
