"""A submitted job has the label of its user, where the API server says who that is."""

from __future__ import annotations

import pytest
from tests.cli.objects import job as a_job
from tests.cluster_client.server import USER_REVIEWS, Fault, Server, forbidden, lost

from muster.usage.segments import USER_LABEL


def test_a_submitted_job_has_the_label_of_its_user(cluster: Server) -> None:
    cluster.user = "ann@example.com"
    assert cluster.client().submit(a_job()).metadata.labels == {USER_LABEL: "ann_at_example.com"}


def test_a_server_that_does_not_know_reviews_of_users_creates_the_job_without_the_label(cluster: Server) -> None:
    assert USER_LABEL not in cluster.client().submit(a_job()).metadata.labels


@pytest.mark.parametrize("fault", [forbidden, lost])
def test_a_review_that_fails_prevents_no_submission(cluster: Server, fault: Fault) -> None:
    cluster.user = "ann"
    cluster.fail("POST", USER_REVIEWS, fault)
    assert USER_LABEL not in cluster.client().submit(a_job()).metadata.labels
