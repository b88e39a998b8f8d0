"""To whom a job's usage is attributed: the label of the user."""

from __future__ import annotations

import itertools

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
        ("ann.example.com", "ann.example.com"),
        ("ann@example.com", "ann_at_example.com"),
        ("system:serviceaccount:team-a:ci", "system__serviceaccount__team-a__ci"),
        ("oidc/ann_b", "oidc_._ann_b"),
        ("0", "0"),
    ],
)
def test_the_label_is_the_name_with_replacements_for_what_labels_cannot_contain(user: str, label: str) -> None:
    assert with_user(job(team="x"), user).metadata.labels == {"team": "x", USER_LABEL: label}


@pytest.mark.parametrize("user", ["", "a" * 64, "Ann Example", "ann@", "ünal", "ann\n", "ann_at_b", "a__b", "a_._b"])
def test_a_user_whose_name_is_no_label_gets_none(user: str) -> None:
    assert with_user(job(), user).metadata.labels == {}


@pytest.mark.parametrize("label", ["bob", ""])
def test_a_label_that_the_job_has_is_kept(label: str) -> None:
    assert with_user(job(**{USER_LABEL: label}), "ann").metadata.labels == {USER_LABEL: label}


def test_no_two_users_have_the_same_label() -> None:
    parts = ("", "a", ".", "@", ":", "/", "_", "_at_", "__", "_._", "at_")
    users = {f"a{''.join(middle)}b" for middle in itertools.product(parts, repeat=3)}
    labels = [with_user(job(), user).metadata.labels.get(USER_LABEL) for user in sorted(users)]
    given = [label for label in labels if label is not None]
    assert len(given) == len(set(given)) > 200
