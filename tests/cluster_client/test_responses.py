"""What the API server sends, in our words: refusals, nodes, Events, logs that go on where they broke off."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.api.spec import Queue, TrainingJob
from muster.api.yaml_input import load_objects
from muster.cluster_client.decode import (
    decode_flavors,
    decode_jobs,
    decode_queues,
    decodes_equal,
    heartbeats_from_status,
    to_event_row,
    to_manifest,
)
from muster.cluster_client.logs import _LogPosition, _split_timestamp


def test_events_of_both_kinds_are_rows() -> None:
    new = {"metadata": {}, "eventTime": "2026-01-01T00:00:00.500000Z", "reason": "Admitted", "message": "m"}
    assert to_event_row(new) == {"at": 1767225600.5, "type": "Normal", "reason": "Admitted", "message": "m", "count": 1}
    old = {"metadata": {}, "lastTimestamp": "2026-01-01T00:00:00Z", "count": 4, "type": "Warning"}
    assert (to_event_row(old)["at"], to_event_row(old)["count"], to_event_row(old)["type"]) == (
        1767225600.0,
        4,
        "Warning",
    )


def test_what_is_sent_is_what_was_written_and_nothing_of_the_server() -> None:
    text = "{apiVersion: muster.dev/v1alpha1, kind: TrainingJob, metadata: {name: a, uid: x, labels: {b: c}}, spec: {roles: [{name: w, template: {spec: {containers: [{image: i}]}}}]}}"  # noqa: E501
    (job,) = load_objects(text)
    assert to_manifest(job, "team") == {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "a", "namespace": "team", "labels": {"b": "c"}},
        "spec": {"roles": [{"name": "w", "template": {"spec": {"containers": [{"image": "i"}]}}}]},
    }


def document(
    kind: str, name: str, at: str = "2026-01-01T00:00:00Z", status: Any = None, **fields: Any
) -> dict[str, Any]:
    """As it comes in a list: without its kind."""
    meta = {"name": name, "generation": 2, "creationTimestamp": at, "managedFields": []}
    namespace = {"namespace": "team"} if kind == "TrainingJob" else {}
    return {"metadata": {**meta, **namespace}, "spec": fields} | ({} if status is None else {"status": status})


ROLES = [{"name": "w", "template": {"spec": {"containers": [{"image": "i"}]}}}]


def test_one_job_that_cannot_be_read_hides_no_other() -> None:
    documents = [
        document("TrainingJob", "young", "2026-01-02T00:00:00Z", roles=ROLES),
        document("TrainingJob", "odd", roles=ROLES, queue="research", newField=1),
        document("TrainingJob", "old", roles=ROLES),
    ]
    listing = decode_jobs(documents)
    assert [job.metadata.name for job in listing.jobs] == ["old", "young"]
    (odd,) = listing.unreadable
    assert (odd.name, odd.queue, odd.phase, odd.flavors) == ("team/odd", "research", "Pending", frozenset())
    assert odd.error.startswith("spec.newField: unknown field; ")
    assert (odd.document["kind"], "managedFields" in odd.document["metadata"]) == ("TrainingJob", False)


def test_of_an_invalid_job_the_queue_phase_and_flavors_are_kept_as_far_as_they_are_valid() -> None:
    placed = {"phase": "Running", "placement": [{"role": "w", "flavor": "h200", "nodes": []}, "odd", {"flavor": 7}]}
    (runs,) = decode_jobs([document("TrainingJob", "a", roles="none", queue=7, status=placed)]).unreadable
    assert (runs.queue, runs.phase, runs.flavors) == (None, "Running", frozenset({"h200"}))
    (bare,) = decode_jobs([{**document("TrainingJob", "a"), "spec": 3, "status": 3}]).unreadable
    assert (bare.queue, bare.phase, bare.flavors) == (None, None, frozenset())


def test_queues_are_read_as_far_as_they_can_be_and_faults_are_reported_by_name() -> None:
    invalid = {
        "type": "Active",
        "status": "False",
        "reason": "InvalidSpec",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    ours = {**invalid, "message": "it cannot be read: spec.x: new", "observedGeneration": 2}
    documents = [
        document("Queue", "odd", parent="company", weight=-1),
        document("Queue", "newer", status={"conditions": [ours]}),
        document("Queue", "mended", status={"conditions": [{**ours, "observedGeneration": 1}]}),
        document("Queue", "sound", weight=2, status={"conditions": "none"}),
    ]
    queues, faults = decode_queues(documents)
    assert [(one.metadata.name, one.spec.parent, one.spec.weight) for one in queues] == [
        ("odd", "company", 1.0),
        ("newer", None, 1.0),
        ("mended", None, 1.0),
        ("sound", None, 2.0),
    ]
    assert faults == {"odd": "spec.weight: must be greater than 0; got -1", "newer": "spec.x: new"}


def test_flavors_that_cannot_be_read_are_reported_by_name() -> None:
    flavors, faults = decode_flavors([document("Flavor", "a", nodeLabels=[]), document("Flavor", "b", status=7)])
    assert [one.metadata.name for one in flavors] == ["b"]
    assert faults == {"a": "spec.nodeLabels: must be a mapping; got a list"}


def test_what_cannot_be_read_is_like_nothing_else() -> None:
    sound, odd = document("Queue", "q", weight=2), document("Queue", "q", weight=-1)
    assert decodes_equal(Queue, sound, document("Queue", "q", weight=2.0))
    assert not decodes_equal(Queue, sound, document("Queue", "q", weight=3))
    assert not decodes_equal(Queue, odd, odd)


STAMPS = st.lists(st.integers(0, 5), max_size=12).map(sorted)


@given(STAMPS, st.integers(0, 12))
def test_a_log_that_breaks_off_goes_on_without_a_gap_or_a_line_twice(stamps: list[int], broke_at: int) -> None:
    """The server sends again everything from the second of the newest line on."""
    log = [(float(stamp), f"line {number}") for number, stamp in enumerate(stamps)]
    place = _LogPosition()
    read_first = list(place.skip_read(iter(log[:broke_at])))
    since = place.last_time
    again = [entry for entry in log if since is None or entry[0] >= since]
    assert [*read_first, *place.skip_read(iter(again))] == log


@pytest.mark.parametrize(
    ("line", "at", "text"),
    [
        ("2026-01-01T00:00:00.123456789Z hello  world", 1767225600.123456789, "hello  world"),
        ("2026-01-01T01:00:00+01:00 ", 1767225600.0, ""),
        ("no stamp", None, "no stamp"),
    ],
)
def test_a_line_comes_with_its_time(line: str, at: float | None, text: str) -> None:
    assert _split_timestamp(line) == (at, text)


def test_what_a_status_tells_of_its_progress_reads_as_a_heartbeat_of_rank_0() -> None:
    progress = {
        "step": 40,
        "steps": 60,
        "loss": 2.5,
        "tokensPerSecond": 9.0,
        "estimatedRemainingSeconds": 30.0,
        "attempt": 1,
        "at": "2026-01-01T00:00:00Z",
    }
    document = {
        "metadata": {"name": "j"},
        "spec": {"roles": [{"name": "r", "template": {"spec": {"containers": [{}]}}}]},
    }
    silent = TrainingJob.model_validate(document)
    reporting = TrainingJob.model_validate({**document, "status": {"progress": progress}})
    assert heartbeats_from_status(silent) == []
    (heartbeat,) = heartbeats_from_status(reporting)
    assert heartbeat == {
        "rank": 0,
        "attempt": 1,
        "step": 40,
        "steps": 60,
        "loss": 2.5,
        "tokens_per_s": 9.0,
        "eta_s": 30.0,
        "collectives_per_step": None,
        "collective_bytes_per_step": None,
        "at": 1767225600.0,
    }
