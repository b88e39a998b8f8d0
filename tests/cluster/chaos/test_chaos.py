"""Every promise is kept while everything breaks: the short form of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.story import play
from tests.cluster.controlplane.binaries import Unavailable


@pytest.mark.slow
@pytest.mark.timeout(1200)  # about a minute on an idle machine; jobs get their time on a busy one
@pytest.mark.parametrize("seed", [3])  # by which new leaders once gave room away that they had not seen
def test_every_promise_is_kept_while_everything_breaks(seed: int, tmp_path: Path) -> None:
    try:
        verdict = play(Size(seed, jobs=60, nodes=40, busy_s=36.0, patience_s=600.0), tmp_path, print)
    except Unavailable as error:
        reason = str(error)
    else:
        assert verdict.good, f"{verdict.text()}\nlogs, report and history: {tmp_path}"
        return
    pytest.fail(reason, pytrace=False)
