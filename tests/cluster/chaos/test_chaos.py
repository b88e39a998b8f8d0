"""Every promise is kept while everything breaks: the short form of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.chaos.driver.settings import Size
from tests.cluster.chaos.driver.story import play


@pytest.mark.slow
@pytest.mark.timeout(900)  # about a minute on an idle machine; jobs get their time on a busy one
@pytest.mark.parametrize("seed", [1])
def test_every_promise_is_kept_while_everything_breaks(seed: int, tmp_path: Path) -> None:
    verdict = play(Size(seed, jobs=60, nodes=40, busy_s=35.0, patience_s=600.0), tmp_path, print)
    assert verdict.good, f"{verdict.text()}\nlogs, report and history: {tmp_path}"
