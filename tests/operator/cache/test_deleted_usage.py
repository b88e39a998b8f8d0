"""Usage of deleted jobs that waits for the record: bounded, and divided fairly between namespaces."""

from __future__ import annotations

from tests.operator.objects import job

from muster.api import spec
from muster_operator.cache.deleted_usage import DeletedUsage


def used(name: str, namespace: str) -> spec.TrainingJob:
    found = job(name)
    usage = {"ended": [{"queue": "q", "user": "", "since": 0.0, "until": 60.0, "flavors": []}]}
    return found.model_copy(
        update={
            "metadata": found.metadata.model_copy(update={"namespace": namespace}),
            "status": spec.TrainingJobStatus.model_validate({"usage": usage}),
        }
    )


def test_a_namespace_that_deletes_many_jobs_replaces_only_its_own() -> None:
    kept = DeletedUsage(lambda: 0.0, lambda: None, max_jobs=10)
    for number in range(3):
        kept.on_deleted(used(f"small-{number}", "small"))
    for number in range(30):
        kept.on_deleted(used(f"large-{number}", "large"))
    names = [one.uid for one in kept.all()]
    assert names == [f"uid-small-{number}" for number in range(3)] + [f"uid-large-{number}" for number in range(23, 30)]
    kept.drop_recorded({"uid-small-0": 1})
    kept.drop_older(-1.0)
    assert kept.all() == ()
    kept.on_deleted(used("again", "small"))
    assert [one.uid for one in kept.all()] == ["uid-again"]
