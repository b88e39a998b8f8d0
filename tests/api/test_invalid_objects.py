"""Objects that an API server keeps and this Muster cannot read: what is said of them, and what still counts."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api.yaml_input.undecodable import invalid_reason, metadata_of, valid_part


def document(kind: str = "Queue", status: Any = None, **fields: Any) -> dict[str, Any]:
    """As it comes from an API server."""
    meta = {"name": "research", "uid": "u", "generation": 3, "resourceVersion": "7"}
    whole: dict[str, Any] = {"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": fields}
    return whole if status is None else {**whole, "status": status}


def gpus(flavor: str, amount: Any) -> dict[str, Any]:
    return {"flavor": flavor, "guaranteed": {"nvidia.com/gpu": amount}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (document(weight=-1), "spec.weight: must be greater than 0; got -1"),
        (document(weigth=2), "spec.weigth: unknown field; did you mean 'weight'?"),
        (document("Flavor", nodeLabels=["gpu"]), "spec.nodeLabels: must be a mapping; got a list"),
        (
            document(parent="A", weight="x", maxPriority="y", halfLifeSeconds=0),
            (
                "spec.parent: must consist of lower-case letters, digits and '-', and start and end with a letter or "
                "digit; got 'A'; spec.weight: must be a number; got 'x'; spec.maxPriority: must be an integer; "
                "got 'y'; and 1 more"
            ),
        ),
    ],
)
def test_what_is_wrong_is_reported_as_at_submit(wrong: dict[str, Any], message: str) -> None:
    assert invalid_reason(wrong, wrong["kind"]) == message


def test_what_can_be_read_has_no_complaint() -> None:
    for kind in ("Queue", "Flavor"):
        assert invalid_reason(document(kind), kind) is None


def test_the_status_of_a_queue_or_a_flavor_is_found_out_again_and_so_no_reason() -> None:
    for kind in ("Queue", "Flavor"):
        assert invalid_reason(document(kind, status={"conditions": "none"}), kind) is None
    job = document("TrainingJob", status={"conditions": "none"}, roles=[])
    assert "status.conditions: must be a list; got 'none'" in str(invalid_reason(job, "TrainingJob"))


def test_of_a_queue_every_field_and_entry_counts_that_can_be_read() -> None:
    entries = [gpus("h200", "16"), gpus("a100", "0.5"), {"flavor": "b300", "limit": {"cpu": "4"}}]
    part = valid_part(document(parent="company", weight=-1, maxPriority=5, newField=True, resources=entries))
    assert (part.metadata.name, part.metadata.generation) == ("research", 3)
    assert (part.spec.parent, part.spec.weight, part.spec.max_priority) == ("company", 1.0, 5)
    assert [entry.flavor for entry in part.spec.resources] == ["h200", "b300"]


@pytest.mark.parametrize("resources", ["all", [gpus("h200", "8"), gpus("h200", "16")], 7])
def test_resources_that_make_no_list_of_flavors_count_as_none(resources: Any) -> None:
    assert valid_part(document(parent="company", resources=resources)).spec.resources == []


def test_what_is_no_object_at_all_still_has_its_name() -> None:
    wrong = {**document(), "spec": None, "metadata": {"name": "research", "generation": "x"}, "status": "none"}
    part = valid_part(wrong)
    assert (part.metadata.name, part.spec.parent, part.status.conditions) == ("research", None, [])
    assert metadata_of(wrong).name == "research"
