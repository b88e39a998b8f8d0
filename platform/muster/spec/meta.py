"""Metadata, conditions and label selectors, and base classes that refuse or preserve unknown fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from muster.spec.fields import LabelKey, Labels, LabelValue, NamespaceName, ObjectName, Time


class StrictModel(BaseModel):
    """Base class of Muster's own types: camelCase in YAML, and an unknown field is an error."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class ExtensibleModel(BaseModel):
    """Base class of Kubernetes' types: declared fields are validated, all others are preserved."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        frozen=True,
        use_attribute_docstrings=True,
    )


class StatusModel(ExtensibleModel):
    """A part of a status. Unknown fields, written by a newer version, are preserved."""


@dataclass(frozen=True, slots=True)
class ValidatedAs:
    """Plain values that are validated as a `model` but not converted, so that Kubernetes gets what the user wrote."""

    model: type[BaseModel]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def keep(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
            validate(value)
            return value

        return core_schema.no_info_wrap_validator_function(
            keep, handler.generate_schema(self.model), serialization=core_schema.simple_ser_schema("any")
        )


class ObjectMeta(ExtensibleModel):
    """The fields of Kubernetes' ObjectMeta that Muster reads."""

    name: ObjectName
    namespace: NamespaceName | None = None
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []


class Condition(StatusModel):
    """A standard condition of Kubernetes."""

    type: Annotated[str, Field(max_length=316)]
    """The type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """The status of the condition."""
    reason: Annotated[str, Field(max_length=1024)]
    """Reason for the last transition, in one CamelCase word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Human-readable details of the last transition."""
    last_transition_time: Time
    """Time of the last change of `status`."""
    observed_generation: int = 0
    """The generation of the object that this condition describes."""


class LabelSelectorRequirement(StrictModel):
    """One requirement on a label."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Relation of the label to `values`."""
    values: Annotated[list[LabelValue], Field(max_length=256)] = []
    """The values. Must be set with In and NotIn, and empty with Exists and DoesNotExist."""

    @model_validator(mode="after")
    def _values_where_they_are_compared(self) -> LabelSelectorRequirement:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            expected = "must be set" if self.operator in ("In", "NotIn") else "must be empty"
            raise ValueError(f"values {expected} with operator {self.operator}")
        return self


class LabelSelector(StrictModel):
    """Both fields must match; an empty selector selects everything."""

    match_labels: Labels = {}
    """Labels and the values they must have."""
    match_expressions: Annotated[
        list[Annotated[dict[str, Any], ValidatedAs(LabelSelectorRequirement)]], Field(max_length=64)
    ] = []
    """Requirements on labels, all of which must match."""
