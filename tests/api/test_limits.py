"""How large the roles of one job may be."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from pydantic import ValidationError
from tests.manifests.objects import job

from muster.api.spec import TrainingJob
from muster.api.spec.limits import MAX_ROLES_BYTES, MAX_ROLES_VALUES
from muster_operator.cache.specs import SpecTooLarge, check_size


def roles(odd: Any, count: int = 1) -> list[dict[str, Any]]:
    template = {"spec": {"containers": [{"name": "main"}], "odd": odd}}
    return [{"name": f"r{number}", "template": template} for number in range(count)]


def taken(wanted: list[dict[str, Any]]) -> bool:
    """Whether a job with these roles is right: to who submits it, and to the operator, which counts undecoded."""
    found: list[Any] = []
    for check in (lambda: TrainingJob.model_validate(job(roles=wanted)), lambda: check_size(compact(wanted))):
        try:
            check()
            found.append(None)
        except ValidationError as refusal:
            (error,) = refusal.errors()
            found.append(f"{'.'.join(map(str, error['loc']))}: {error['msg']}")
        except SpecTooLarge as refusal:
            found.append(str(refusal))
    assert found[0] == found[1]
    return found[0] is None


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.mark.parametrize("value", [0, {}, [], {"a": {}}, [[]], 'a, "quoted" {text} \\', {"[": ","}], ids=repr)
def test_roles_may_have_so_many_values_and_not_one_more(value: Any) -> None:
    def padded(count: int) -> list[dict[str, Any]]:
        return roles([value, *[0] * count])

    most = next(count for count in range(MAX_ROLES_VALUES, 0, -1) if taken(padded(count)))
    assert MAX_ROLES_VALUES - 15 < most < MAX_ROLES_VALUES
    assert not taken(padded(most + 1))


def test_all_roles_count_together() -> None:
    assert taken(roles([0] * (MAX_ROLES_VALUES // 2 - 100), 2))
    assert not taken(roles([0] * (MAX_ROLES_VALUES // 2), 2))


def test_roles_may_have_so_many_bytes_and_not_one_more() -> None:
    beside = len(compact(roles("")))
    assert taken(roles("x" * (MAX_ROLES_BYTES - beside)))
    assert not taken(roles("x" * (MAX_ROLES_BYTES - beside + 1)))


@pytest.mark.parametrize("long", ["x" * 1_500_000, "\n" * 750_000], ids=["plain", "escapes"])
def test_to_count_a_text_of_an_object_of_the_largest_size_takes_little_memory(long: str) -> None:
    text = compact(roles(long))
    tracemalloc.start()
    try:
        with pytest.raises(SpecTooLarge):
            check_size(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()
