"""A rank with a slow data loader is blamed, and the ranks that wait for it are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.tracing.analysis.run_analysis import analyse_run
from muster.tracing.runs.run_folder import read_run_folder
from muster_components.trainer.errors import EXIT_OK

from .conftest import TINY, Starter

pytestmark = pytest.mark.slow

SLOW_LOADER = """
import os, sys, time
from muster_components.trainer.__main__ import main
from muster_components.trainer.forward_backward import BatchReader
read = BatchReader.read
def slow_read(self, step):
    if os.environ["RANK"] == os.environ["SLOW_RANK"]:
        time.sleep(1.0)
    return read(self, step)
BatchReader.read = slow_read
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("layout", "slow_rank"),
    [
        (("--parallel", "pp=2", "--pipeline_schedule", "GPipe"), 0),
        (("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B"), 1),
    ],
)
def test_only_the_rank_with_the_slow_loader_is_blamed(
    tmp_path: Path, start: Starter, text: Path, layout: tuple[str, ...], slow_rank: int
) -> None:
    """The loader sleeps a second of each step, so that other work on the machine stays far below the thresholds."""
    (tmp_path / "slow_loader.py").write_text(SLOW_LOADER)
    ranks = start(
        2, *TINY, "--data", str(text), "--steps", "6", "--trace_steps", "3:6", *layout,
        module="slow_loader", environ={"SLOW_RANK": str(slow_rank)},
    )  # fmt: skip
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    report = analyse_run(read_run_folder(ranks.run_dir))
    assert {(verdict.ranks, str(verdict.cause)) for verdict in report.verdicts} == {((slow_rank,), "data-loading")}
    (verdict,) = report.verdicts
    assert verdict.cost_ms > 600  # on a busy machine other threads still work in part of the second
