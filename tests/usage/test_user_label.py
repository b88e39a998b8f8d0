"""To whom a job's usage is attributed: the label of the user."""

from __future__ import annotations

import pytest

from muster.api.spec import TrainingJob
from muster.usage.segments import USER_LABEL, with_user


def job(**labels: str) -> TrainingJob:
    return TrainingJob.model_validate(
        {
            "metadata": {"name": "a", "labels": labels},
            "spec": {"roles": [{"name": "w", "template": {"spec": {"containers": [{"image": "i"}]}}}]},
        }
    )


@pytest.mark.parametrize(
    ("user", "label"),
    [
        ("ann", "ann"),
        ("ann@example.com", "ann.example.com"),
        ("system:serviceaccount:team-a:ci", "system.serviceaccount.team-a.ci"),
        ("oidc/ann_b", "oidc.ann_b"),
        ("0", "0"),
    ],
)
def test_the_label_is_the_name_with_points_for_what_labels_cannot_contain(user: str, label: str) -> None:
    assert with_user(job(team="x"), user).metadata.labels == {"team": "x", USER_LABEL: label}


@pytest.mark.parametrize("user", ["", "a" * 64, "Ann Example", "ann@", "ünal", "ann\n"])
def test_a_user_whose_name_is_no_label_gets_none(user: str) -> None:
    assert with_user(job(), user).metadata.labels == {}


@pytest.mark.parametrize("given", ["bob", ""])
def test_a_label_that_the_job_has_is_kept(given: str) -> None:
    assert with_user(job(**{USER_LABEL: given}), "ann").metadata.labels == {USER_LABEL: given}
