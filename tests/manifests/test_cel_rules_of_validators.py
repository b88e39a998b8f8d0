"""What pydantic refuses, the API server refuses: here the table's Python half, and that no validator lacks its rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel, ValidationError
from tests.manifests.objects import BAD, GOOD, Bad, Object, job
from tools.crdgen import LABEL_RULES, QUANTITY_RULES, VALIDATION_RULES

from muster.api.spec import ExtensibleModel, StrictModel
from muster.api.yaml_input import KINDS


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


VALIDATORS = sorted(
    (model.__name__, name)
    for model in {*models(StrictModel), *models(ExtensibleModel)}
    if model.__module__.startswith("muster.api.")  # suites of benchmarks are no objects of an API server
    for name in (
        *model.__pydantic_decorators__.model_validators,
        *model.__pydantic_decorators__.field_validators,
        *(name for name, field in model.model_fields.items() if field.annotation is type(None)),
    )
)
WITHOUT_RULE = [
    ("PodTemplate", "_check_template_depth"),
    ("TrainingJob", "_check_size_and_depth"),
    ("ArraySpec", "_indices_can_be_counted"),
]
"""No rule of an API server counts levels, and one that counts indices costs more than the oldest one allows: the
operator tells in the job's status."""
CEL_RULES = {
    (model.__name__, rule.validator) for model, rules in VALIDATION_RULES.items() for rule in rules if rule.validator
}


@pytest.mark.parametrize("item", GOOD, ids=str)
def test_what_is_right_is_accepted(item: Object) -> None:
    KINDS[item["kind"]].model_validate(item, strict=True)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_what_is_wrong_is_refused(bad: Bad) -> None:
    with pytest.raises(ValidationError) as caught:
        KINDS[bad.item["kind"]].model_validate(bad.item, strict=True)
    assert bad.python in str(caught.value)


def test_every_validator_has_its_rule_and_every_rule_its_validator() -> None:
    assert sorted([*CEL_RULES, *WITHOUT_RULE]) == VALIDATORS


def test_every_map_of_labels_is_checked() -> None:
    assert [rule.validator for rule in LABEL_RULES] == ["Labels"]


def test_every_amount_has_a_bound() -> None:
    assert [rule.validator for rule in QUANTITY_RULES] == ["Quantities", "Quantities"]


@pytest.mark.parametrize(
    ("indices", "message"),
    [("1,9-3", "must not be below its first"), ("0-9,10-10000", "at most 10000 indices")],
)
def test_indices_that_cannot_be_counted_are_refused(indices: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KINDS["TrainingJob"].model_validate(job(array={"indices": indices}), strict=True)
