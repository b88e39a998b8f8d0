"""Tables and live progress in narrow terminals: what belongs together stays together."""

from __future__ import annotations

import pytest
from rich.console import Console
from tests.cli.conftest import Muster
from tests.cli.memory import NOW, MemoryClient
from tests.cli.objects import job, status

from muster.cli.views.watch import LossCurve, WatchFrame, render_frame

LONG = "research-language-models-for-all-of-us"


def queue(name: str, parent: str | None = None) -> dict[str, object]:
    amounts = {"used": {"nvidia.com/gpu": "2"}, "guaranteed": {"nvidia.com/gpu": "8"}, "limit": {}, "lend": {}}
    resources = [{"flavor": "h200", "borrowed": {}, "available": {}, **amounts}]
    text = {"name": name, "parent": parent, "active": True, "reason": "", "message": "", "overcommitted": None}
    return {**text, "weight": 1.0, "share": 0.0, "waiting": 1, "admitted": 1, "resources": resources}


@pytest.mark.parametrize(("columns", "bars"), [(60, False), (80, True)])
def test_in_a_narrow_terminal_bars_and_their_legend_are_omitted(
    cluster: MemoryClient, muster: Muster, monkeypatch: pytest.MonkeyPatch, columns: int, bars: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    cluster.queue_rows = [queue("company"), queue(LONG, "company")]
    lines = muster("queues").out.splitlines()
    assert max(map(len, lines)) <= columns
    assert ("██ used" in "\n".join(lines), "█" in lines[1]) == (bars, bars)
    assert lines[-1].endswith("● running  ○ waiting")
    assert lines[2].split()[:1] == ["└─"]
    assert lines[2].split()[-2:] == ["2", "8"]


@pytest.mark.parametrize("columns", [60, 80])
def test_no_figure_of_live_progress_is_broken_in_two(columns: int) -> None:
    heartbeat = {
        "step": 11, "steps": 300, "attempt": 0, "phase": "train", "tokens_per_s": 1.2e6, "step_time_s": 0.9,
        "mfu": 0.473, "peak_memory_bytes": 33_700_000_000, "checkpoint_step": 50, "world_size": 8, "at": NOW,
    }  # fmt: skip
    console = Console(width=columns, no_color=True, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_frame(WatchFrame(job(status=status("Running")), heartbeat, NOW), LossCurve(), columns))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= columns
    figures = [part for line in lines[1:] for part in line.split(" · ")]
    assert figures == [
        "1.2M tokens/s", "900 ms/step", "MFU 47.3%", "peak memory 31.4 GiB", "checkpoint at step 50", "8 ranks",
    ]  # fmt: skip
