"""The jobs of users in a chaos run fit the cluster."""

from __future__ import annotations

import pytest
from tests.cluster.chaos.driver.settings import GPUS, PER_RACK, Size
from tests.cluster.chaos.driver.users import GPU, planned_jobs


@pytest.mark.parametrize("seed", [3, 2028])
def test_a_gang_with_a_required_rack_fits_into_one(seed: int) -> None:
    insisting = [
        planned for planned in planned_jobs(Size(seed)) if planned.body["spec"].get("topology") == {"required": "rack"}
    ]
    assert insisting
    for planned in insisting:
        role = planned.body["spec"]["roles"][0]
        gpus = int(role["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])
        pods = role.get("minReplicas", role["replicas"])
        assert pods <= PER_RACK * (GPUS // gpus), planned.name
