"""Gates: what has to hold before quota and capacity of a workload matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.objects import queue
from tests.kinds.suspended import SuspendedObject

from muster.api.spec import ObjectMeta, QueueingStatus
from muster.cluster import DecodeErrors
from muster.errors import Refused
from muster.model import Gang
from muster.state.jobs import JobContext, project_job
from muster.workload import gates
from muster.workload.gates import Closed, GateState, first_closed, readable_gate, refuse_closed
from muster.workload.planning import gang_of
from muster.workload.protocol import Workload

NOW = 1000.0
OBJECT = SuspendedObject(ObjectMeta(name="a", namespace="d", uid="u"), QueueingStatus())
OPEN = GateState({"default": queue()}, {("default", "d"): True}, {"high": 7})


def closed(workload: SuspendedObject, state: GateState) -> str | None:
    found = first_closed(workload, gang_of(workload, NOW, state.priority_classes, workload.roles(), 60.0), state, NOW)
    return None if found is None else found.reason


def test_each_gate_names_what_is_missing_and_all_are_open_once_nothing_is() -> None:
    assert closed(OBJECT, OPEN) is None
    assert closed(replace(OBJECT, priority_class="high"), OPEN) is None
    assert closed(replace(OBJECT, priority_class="low"), OPEN) == "PriorityClassNotFound"
    assert closed(replace(OBJECT, queue="other"), OPEN) == "QueueNotFound"
    assert closed(OBJECT, replace(OPEN, allowed_namespaces={("default", "d"): False})) == "QueueNotAllowed"
    assert closed(OBJECT, replace(OPEN, device_classes={"nvidia.com/gpu": "gpus"})) == "ResourceProvidedByDRA"


def test_a_queue_or_flavors_that_cannot_be_read_are_refused_with_the_reason() -> None:
    both = [{"flavor": "h200", "guaranteed": {"nvidia.com/gpu": 32}}]
    tree = {one.metadata.name: one for one in (queue("company", resources=both), queue("research", None, "company"))}
    gang = replace(gang_of(OBJECT, NOW, {}, OBJECT.roles(), 60.0), queue="research")

    def refusal(errors: DecodeErrors, *flavors: str) -> str:
        state = replace(OPEN, queues=tree, decode_errors=errors)
        try:
            refuse_closed((readable_gate,), OBJECT, replace(gang, flavors=flavors), state, NOW)
        except Refused as error:
            return f"{error.reason} {error.field} {error}"
        return ""

    assert refusal(DecodeErrors({"other": "odd"}, {"a100": "odd"})) == ""
    assert refusal(DecodeErrors({}, {"a100": "odd"}), "a100", "h200") == ""
    above = "QueueInactive spec.queue spec.queue: queue company, above queue research, cannot be read: spec.x: odd"
    assert refusal(DecodeErrors({"company": "spec.x: odd"}, {})) == above
    unreadable = "FlavorNotFound spec.flavors spec.flavors: flavor h200 cannot be read: spec.x: odd"
    assert refusal(DecodeErrors({}, {"h200": "spec.x: odd"})) == unreadable
    assert refusal(DecodeErrors({}, {"h200": "spec.x: odd"}), "a100", "h200") == unreadable, "a100 has no quota"


def test_a_job_is_projected_again_when_its_gate_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(workload: Workload, gang: Gang, state: GateState, now: float) -> Closed | None:
        return Closed("QueueNotAllowed", "not before the evening", recheck_at=NOW + 60)

    monkeypatch.setattr(gates, "GATES", (later,))
    gang = gang_of(OBJECT, NOW, {}, OBJECT.roles(), 60.0)
    projection = project_job(OBJECT, (), NOW, JobContext({}, {"default": 60.0}, OPEN), gang)
    assert (projection.pending, projection.changes_at) == (None, NOW + 60)
