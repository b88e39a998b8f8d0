"""Statuses that an earlier version wrote."""

from muster.api.spec import TrainingJob
from muster_operator.cache.status_patch import status_patch

HOLD = {
    "placement": [{"role": "worker", "flavor": "gpus", "nodes": [{"node": "n0", "indexes": "0-7"}]}],
    "victims": ["u-low"],
    "expiresAt": "2026-11-22T10:00:00Z",
}
SPEC = {"queue": "q", "roles": [{"name": "worker", "template": {"spec": {"containers": [{"image": "a"}]}}}]}


def job(**status: object) -> TrainingJob:
    return TrainingJob.model_validate({"metadata": {"name": "a"}, "spec": SPEC, "status": status})


def test_a_nomination_that_an_earlier_version_wrote_is_read_as_a_nomination() -> None:
    status = job(hold=HOLD).status
    assert status.hold is None
    assert status.nomination is not None
    assert (status.nomination.victims, status.nomination.placement[0].nodes[0].node) == (["u-low"], "n0")
    assert "hold" not in status.model_dump(by_alias=True)


def test_a_nomination_counts_beside_an_old_nomination() -> None:
    status = job(hold=HOLD, nomination={**HOLD, "victims": ["u-other"]}).status
    assert status.nomination is not None
    assert status.nomination.victims == ["u-other"]


def test_a_patch_that_takes_the_nomination_away_takes_the_old_field_away_too() -> None:
    old = job(hold=HOLD).status
    changed = status_patch(old, old.model_copy(update={"nomination": None}), "7")["status"]
    assert (changed["nomination"], changed["hold"]) == (None, None)
