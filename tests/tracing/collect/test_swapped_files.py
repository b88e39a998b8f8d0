"""A trainer with the collector's user id replaces files and folders by links while the collector works."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tracing.swapping import SWAPS, AttackedRun, collect_while_swapping

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undisturbed")]


@pytest.mark.parametrize("swap", SWAPS, ids=lambda swap: swap.__name__)
def test_a_link_swapped_in_at_any_line_causes_no_access_outside_the_run_folder(
    tmp_path: Path, swap: Callable[[AttackedRun], None]
) -> None:
    lines = collect_while_swapping(AttackedRun(tmp_path / "undisturbed"), None, None)
    assert len(lines) > 100
    wrong = []
    for line in lines:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            attacked = AttackedRun(Path(folder))
            collect_while_swapping(attacked, swap, line)
            wrong += [(line, name) for name in (*attacked.leaked(), *attacked.changed_outside())]
    assert wrong == []
