"""Flavor: a kind of node, and its topology."""

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
    """The node label whose value is the domain."""


class FlavorSpec(StrictModel):
    """The nodes of this kind, tolerations of pods on them, and their topology (widest level first)."""

    node_labels: Labels = {}
    """Nodes with all these labels belong to the flavor. Default: every node."""
    tolerations: Tolerations = []
    """Tolerations that are added to every pod placed on these nodes."""
    topology: Annotated[list[TopologyLevel], Field(max_length=16), ListMapKey("name", "give every level its own")] = []
    """Topology levels, widest first."""

    @model_validator(mode="after")
    def _labels_once(self) -> FlavorSpec:
        labels = [level.node_label for level in self.topology]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"topology: the nodeLabel of each level must be unique; got {twice[0]!r} more than once")
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
    """The nodes of this kind."""
    status: FlavorStatus = FlavorStatus()
    """The observed state."""
