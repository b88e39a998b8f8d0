"""Field types, metadata, conditions, label selectors, and base classes that refuse or preserve unknown fields.

Each field type carries its constraints for pydantic, and the schema from which `tools/crdgen` generates the CRDs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from muster.api import descriptions
from muster.api.quantity import MAX_QUANTITY, check_quantity
from muster.text import read_duration

API_VERSION = "muster.dev/v1alpha1"
JOB_LABEL, ROLE_LABEL = "muster.dev/job", "muster.dev/role"  # of pods on Kubernetes
MAX_REPLICAS = 100_000
MAX_JOB_NAME = 52  # leaves 11 of the 63 characters of a pod's name for role, index and hash
MAX_SECONDS = 366 * 24 * 3600
MAX_QUANTITIES = 32
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=MAX_JOB_NAME)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", min_length=1, max_length=253)]
NamespaceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)]


def _parse_seconds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return read_duration(value)
        except ValueError as error:
            raise ValueError(f"{error}; got {value!r}") from error
    return value


Seconds = Annotated[int, Field(ge=1, le=MAX_SECONDS), BeforeValidator(_parse_seconds)]
"""Seconds. YAML files may have a duration such as 2h, which is stored as a number: the API server accepts only that."""


def _parse_time(value: Any) -> Any:
    if isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
    return value


def _format_time(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Time = Annotated[
    float,
    BeforeValidator(_parse_time),
    PlainSerializer(_format_time, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Unix seconds in Python, RFC 3339 with microseconds outside."""


def _check_time(value: Any) -> Any:
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else None
        if at is not None and at.tzinfo is not None:
            return at.astimezone(UTC).timestamp()
    except (ValueError, OverflowError):  # also of a time whose year in UTC is not 1 to 9999
        pass
    if isinstance(value, float):
        return value
    raise ValueError(f"must be a time with its zone such as 2026-12-01T18:00:00Z; got {str(value)!r}")


GivenTime = Annotated[
    float,
    BeforeValidator(_check_time),
    PlainSerializer(_format_time, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A `Time` that a user writes."""


@dataclass(frozen=True, slots=True)
class InvalidField:
    """An error of a validator: a message that begins with `FIELD: `, and the field's value."""

    message: str
    value: Any

    @property
    def field(self) -> str:
        return self.message.partition(": ")[0]


def raise_invalid_fields(errors: Iterable[InvalidField]) -> None:
    """Raise one ValidationError with all errors, each at its own field; a ValueError could report only one."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError("value_error", "{message}", {"message": error.message}),
            loc=(error.field,),
            input=error.value,
        )
        for error in errors
    ]
    if details:
        raise ValidationError.from_exception_data("fields", details)


def _check_quantities(amounts: Any) -> Any:
    if isinstance(amounts, dict):
        raise_invalid_fields(_invalid_quantities(amounts))
        return {name: str(value) for name, value in amounts.items()}
    return amounts


def _invalid_quantities(amounts: dict[Any, Any]) -> Iterator[InvalidField]:
    for name, value in amounts.items():
        try:
            check_quantity(value, str(name))
        except ValueError as error:
            yield InvalidField(str(error), value)


_QUANTITY_SCHEMA = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
    "minimum": 0,
    "maxLength": MAX_QUANTITY,
    "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?$",
}
Quantities = Annotated[
    dict[str, str],
    BeforeValidator(_check_quantities),
    Field(max_length=MAX_QUANTITIES),
    WithJsonSchema({"type": "object", "maxProperties": MAX_QUANTITIES, "additionalProperties": _QUANTITY_SCHEMA}),
]
"""Kubernetes quantities by resource name: 8, "500m", "16Gi". The API server accepts a fraction only as a string:
"0.5" or "500m"."""


LABEL_KEY = (
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
    r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LABEL_SYNTAX = "a label's name: at most 63 letters, digits, '-', '_' and '.', as in gpu.model or example.com/rack"
MAX_LABEL_KEY = 317  # a DNS name of 253 characters, a slash, a name of 63
MAX_LABELS = 64

LabelKey = Annotated[str, Field(pattern=LABEL_KEY, min_length=1, max_length=MAX_LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]


def _check_label_keys(labels: Any) -> Any:
    if isinstance(labels, dict):
        raise_invalid_fields(
            InvalidField(f"{key}: must be {LABEL_SYNTAX}; got {key!r}", key)
            for key in labels
            if isinstance(key, str) and (len(key) > MAX_LABEL_KEY or not re.fullmatch(LABEL_KEY, key))
        )
    return labels


Labels = Annotated[dict[str, LabelValue], Field(max_length=MAX_LABELS), BeforeValidator(_check_label_keys)]
"""Kubernetes labels: values by key."""


@dataclass(frozen=True, slots=True)
class ListMapKey:
    """A list with a unique `key` (a field's name in YAML): to the API server a map, merged by that key.

    `advice` says what to do about a second entry.
    """

    key: str
    hint: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}

    def _check(self, entries: list[Any]) -> list[Any]:
        seen = set()
        for name in (getattr(entry, self.key) for entry in entries):
            if name in seen:
                raise ValueError(f"{self.key} must be unique; got {name!r} more than once; {self.hint}")
            seen.add(name)
        return entries


class _CamelCaseModel(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        use_attribute_docstrings=descriptions.wanted,
    )


class StrictModel(_CamelCaseModel):
    """Base class of Muster's own types: camelCase in YAML, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")


class ExtensibleModel(_CamelCaseModel):
    """Base class of Kubernetes' types: declared fields are validated, all others are preserved."""

    model_config = ConfigDict(extra="allow")


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
