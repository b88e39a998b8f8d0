"""Queues and flavors that cannot be read: their state for the engine, and the reported errors."""

from __future__ import annotations

from typing import Any

from tests.operator.caches import new_cache, relist
from tests.operator.objects import read

from muster.kube.objects import RawCustomObject


def seen_as(name: str, version: int = 1, uid: str = "u", **fields: Any) -> RawCustomObject:
    """A Queue or a Flavor as a watch delivers it."""
    meta = {"name": name, "uid": uid, "generation": version, "resourceVersion": str(version)}
    return read(RawCustomObject, {"metadata": meta, "spec": fields})


def gpus(amount: Any) -> list[dict[str, Any]]:
    return [{"flavor": "h200", "guaranteed": {"nvidia.com/gpu": amount}}]


def test_an_invalid_queue_stays_as_before_the_edit_and_is_reported() -> None:
    cache, changes = new_cache()
    cache.queues.on_upsert(seen_as("q", weight=2, resources=gpus("8")))
    (before,) = cache.observe().queues
    assert changes.during(lambda: cache.queues.on_upsert(seen_as("q", 2, weight=-1, resources=gpus("0.5")))) > 0
    observed = cache.observe()
    (after,) = observed.queues
    assert (after.spec is before.spec, after.metadata.generation, after.metadata.resource_version) == (True, 2, "2")
    assert list(observed.decode_errors.queues) == ["q"]
    assert observed.decode_errors.queues["q"].startswith("spec.weight: must be greater than 0; got -1; spec.resources")


def test_a_queue_that_was_never_valid_has_its_valid_fields() -> None:
    cache, _ = new_cache()
    cache.queues.on_upsert(seen_as("q", parent="all", weight=-1, resources=gpus("8")))
    (part,) = cache.observe().queues
    assert (part.spec.parent, part.spec.weight, len(part.spec.resources)) == ("all", 1.0, 1)
    cache.queues.on_upsert(seen_as("q", 2, uid="another", weight="x"))
    assert cache.observe().queues[0].spec.parent is None, "what another queue of that name was does not count"


def test_a_fixed_queue_has_its_new_spec() -> None:
    cache, changes = new_cache()
    cache.queues.on_upsert(seen_as("q", weight=-1))
    assert changes.during(lambda: cache.queues.on_upsert(seen_as("q", 2, weight=3))) > 0
    observed = cache.observe()
    assert (observed.queues[0].spec.weight, dict(observed.decode_errors.queues)) == (3.0, {})


def test_an_invalid_flavor_has_no_nodes_until_it_is_fixed() -> None:
    cache, changes = new_cache()
    cache.flavors.on_upsert(seen_as("h200", nodeLabels={"gpu": "h200"}))
    assert changes.during(lambda: cache.flavors.on_upsert(seen_as("h200", 2, nodeLabels=["gpu"]))) > 0
    observed = cache.observe()
    assert (observed.flavors, list(observed.decode_errors.flavors)) == ((), ["h200"])
    assert changes.during(lambda: cache.flavors.on_upsert(seen_as("h200", 3, nodeLabels={"gpu": "h200"}))) > 0
    assert (len(cache.observe().flavors), dict(cache.observe().decode_errors.flavors)) == (1, {})


def test_errors_of_deleted_objects_are_removed() -> None:
    for kind in ("queues", "flavors"):
        cache, changes = new_cache()
        handler = getattr(cache, kind)
        for name in ("a", "b"):
            handler.on_upsert(seen_as(name, nodeLabels=7, weight="x"))
        handler.on_delete(seen_as("a", 2))
        assert list(getattr(cache.observe().decode_errors, kind)) == ["b"]
        assert changes.during(lambda handler=handler: relist(handler, [], 9)) > 0  # type: ignore[misc]
        observed = cache.observe()
        assert (getattr(observed, kind), bool(observed.decode_errors)) == ((), False)


def test_a_status_that_cannot_be_read_counts_as_never_written() -> None:
    cache, _ = new_cache()
    odd = seen_as("q", weight=2)
    odd.status = read(RawCustomObject, {"metadata": {}, "status": {"conditions": "none"}}).status
    cache.queues.on_upsert(odd)
    observed = cache.observe()
    assert (observed.queues[0].spec.weight, observed.queues[0].status.conditions, bool(observed.decode_errors)) == (
        2.0,
        [],
        False,
    )


def test_errors_are_the_same_mapping_until_something_changes() -> None:
    cache, _ = new_cache()
    cache.queues.on_upsert(seen_as("q", weight=-1))
    assert cache.observe().decode_errors.queues is cache.observe().decode_errors.queues
