"""The jobs of users in a chaos run fit the cluster."""

from __future__ import annotations

import pytest
from tests.cluster.chaos.driver.settings import GPUS, PER_RACK, Size
from tests.cluster.chaos.driver.wishes import GPU, wishes


@pytest.mark.parametrize("seed", [3, 2028])
def test_a_gang_that_insists_on_one_rack_fits_into_one(seed: int) -> None:
    insisting = [wish for wish in wishes(Size(seed)) if wish.body["spec"].get("topology") == {"required": "rack"}]
    assert insisting
    for wish in insisting:
        role = wish.body["spec"]["roles"][0]
        gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
        pods = role.get("minReplicas", role["replicas"])
        assert pods <= PER_RACK * (GPUS // gpus), wish.name
