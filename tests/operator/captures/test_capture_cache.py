"""Which captures are carried out, and what the cache of captures keeps."""

from __future__ import annotations

import json
from typing import Any

from tests.operator.objects import capture_document, read

from muster.api.spec import TraceCapture
from muster.kube.objects import RawCustomObject
from muster_operator.captures.capture_cache import CaptureCache
from muster_operator.captures.capture_controller import MAX_ACTIVE_PER_NAMESPACE, choose_active


def capture(name: str, **fields: Any) -> TraceCapture:
    return TraceCapture.model_validate(capture_document(name, **fields))


def names(captures: list[TraceCapture]) -> list[str]:
    return [one.metadata.name for one in captures]


def test_one_capture_of_a_job_runs_at_a_time_and_one_that_has_begun_comes_first() -> None:
    waiting, begun, other = capture("a"), capture("b", proposal=1), capture("c", job="other")
    assert sorted(names(choose_active([waiting, begun, other]))) == ["b", "c"]
    ended = capture("b", proposal=1, phase="Succeeded")
    assert sorted(names(choose_active([waiting, ended, other]))) == ["a", "c"]
    elsewhere = capture("d", namespace="team")
    assert sorted(names(choose_active([begun, elsewhere]))) == ["b", "d"]


def test_the_number_of_captures_of_a_namespace_that_run_is_bounded() -> None:
    many = [capture(f"c{number}", job=f"job-{number}") for number in range(20)]
    other = capture("x", namespace="team")
    assert len(choose_active([*many, other])) == MAX_ACTIVE_PER_NAMESPACE + 1


def test_deleted_captures_that_were_not_finished_are_withdrawn() -> None:
    changes: list[None] = []
    cache = CaptureCache(lambda: changes.append(None))
    for name, phase in (("open", "Pending"), ("ended", "Failed")):
        cache.on_upsert(read(RawCustomObject, capture_document(name, phase=phase)))
    assert names(cache.all()) == ["ended", "open"]
    for name in ("open", "ended"):
        cache.on_delete(read(RawCustomObject, capture_document(name, version=2)))
    assert (names(cache.take_withdrawn()), cache.take_withdrawn(), cache.all()) == (["open"], [], [])
    assert len(changes) == 4


def test_an_object_that_cannot_be_read_hides_no_other_and_an_unreadable_status_counts_as_none() -> None:
    cache = CaptureCache(lambda: None)
    wrong = capture_document("wrong")
    wrong["spec"] = {"job": "llama", "steps": "many"}
    cache.on_upsert(read(RawCustomObject, wrong))
    cache.on_upsert(read(RawCustomObject, capture_document("odd", phase="Dreaming")))
    cache.on_upsert(read(RawCustomObject, capture_document("good", proposal=2)))
    assert [(one.metadata.name, one.status.proposal) for one in cache.all()] == [("good", 2), ("odd", 0)]


def test_our_own_status_counts_at_once_and_its_event_changes_nothing() -> None:
    cache = CaptureCache(lambda: None)
    cache.on_upsert(read(RawCustomObject, capture_document("c", version=5)))
    (before,) = cache.all()
    cache.on_written(before, before.status.model_copy(update={"proposal": 1}), 6)
    cache.on_upsert(read(RawCustomObject, capture_document("c", version=5)))
    (after,) = cache.all()
    assert (after.status.proposal, after.metadata.resource_version) == (1, "6")
    assert json.loads(after.model_dump_json(by_alias=True))["status"]["proposal"] == 1
