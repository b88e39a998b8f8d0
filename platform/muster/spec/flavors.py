"""Flavor: a kind of node, and its topology."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from muster.spec.fields import LabelKey, Labels, ListMapKey, Name
from muster.spec.meta import Condition, ObjectMeta, StatusModel, StrictModel
from muster.spec.pods import Tolerations


class TopologyLevel(StrictModel):
    """A level of the topology of a flavor."""

    name: Name
    """Name of the level, e.g. rack. Unique in a flavor."""
    node_label: LabelKey
    """Key of the node label whose value identifies the domain at this level. Unique in a flavor."""


class FlavorSpec(StrictModel):
    """The desired state of a flavor."""

    node_labels: Labels = {}
    """Nodes with all these labels belong to the flavor. Default: all nodes."""
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
    """The observed state of a flavor."""

    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Overlapping: True if some nodes match this flavor and another one; they are used for neither. Valid: False if
    the operator cannot decode the flavor; no job is then placed on it."""


class Flavor(StrictModel):
    """Flavor is a kind of node: the labels that select its nodes, and their topology."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["Flavor"] = "Flavor"
    metadata: ObjectMeta
    spec: FlavorSpec = FlavorSpec()
    """The desired state."""
    status: FlavorStatus = FlavorStatus()
    """The observed state."""
