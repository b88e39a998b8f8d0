"""Every guarantee is kept under faults: the short form of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.chaos.driver.run import run_chaos
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.controlplane.binaries import Unavailable


@pytest.mark.slow
@pytest.mark.timeout(1200)  # about two minutes on two cores
@pytest.mark.parametrize("seed", [3])  # new leaders once assigned capacity that was in use
def test_every_guarantee_is_kept_under_faults(seed: int, tmp_path: Path) -> None:
    try:
        result = run_chaos(Size(seed, jobs=60, nodes=40, fault_s=36.0, end_timeout_s=600.0), tmp_path, print)
    except Unavailable as error:
        reason = str(error)
    else:
        assert result.good, f"{result.text()}\nlogs, report and history: {tmp_path}"
        return
    pytest.fail(reason, pytrace=False)
