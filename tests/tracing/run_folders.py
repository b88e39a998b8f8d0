"""Run folders of finished jobs, and the output of reports."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from rich.console import Console
from tests.tracing.kineto import GpuRank, gpu_job, training_steps, write_trace

from muster.tracing.report import Report, render_terminal

HOSTILE = '<script>alert("1")</script>&\'"><img src=x onerror=y> [bold]'


def metrics_line(number: int, **values: object) -> str:
    line = {"step": number, "attempt": 0, "at": 1.0, "step_time_s": 0.1, "loss": 5.0 - number / 16}
    return json.dumps({**line, "tokens_per_s": 1000.0, **values}) + "\n"


def run_folder(folder: Path, *, ranks: int = 2, steps: int = 40, slow_rank: int | None = None) -> Path:
    """The run folder of a job that traced steps 20 to 22; the slow rank computes longer and the others wait for it."""
    for name in ("metrics", "heartbeats", "traces/spool"):
        (folder / name).mkdir(parents=True)
    for rank in range(ranks):
        lines = [metrics_line(i, step_time_s=2.0 if i == 0 else 0.1) for i in range(steps)]
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(lines))
        heartbeat = {
            "rank": rank,
            "world_size": ranks,
            "attempt": 0,
            "step": steps,
            "steps": steps,
            "peak_memory_bytes": 2**31,
        }
        (folder / f"heartbeats/rank-{rank}.json").write_text(json.dumps(heartbeat))
        compute_us, wait_us = (700, 100) if rank == slow_rank else (400, 400)
        events = training_steps(3, compute_us=compute_us, wait_us=wait_us)
        write_trace(
            folder / f"traces/spool/rank-{rank}.attempt-0.steps-20-23.json", events, rank=rank, world_size=ranks
        )
    return folder


def gpu_run_folder(
    folder: Path, ranks: Sequence[GpuRank], *, steps: int = 200, traced: int = 5, loss: bool = True
) -> Path:
    """The run folder of a job on GPUs that traced `traced` steps from step 10 on; memory grows with the rank."""
    for name in ("metrics", "heartbeats", "traces/spool"):
        (folder / name).mkdir(parents=True)
    traces = f"rank-{{rank}}.attempt-0.steps-10-{10 + traced}.json"
    gpu_job(folder / "traces/spool", ranks, steps=traced, name=traces)
    waits_for = max(rank.blocked[1] + (rank.layers + rank.extra) * rank.kernel_ms * rank.slowdown for rank in ranks)
    for rank in range(len(ranks)):
        noise = random.Random(rank)
        lines = [
            metrics_line(
                number,
                step_time_s=(waits_for + 1) / 1e3 * (noise.uniform(0.98, 1.02) if number else 20),
                loss=4 + 6 / (1 + number / 10) + noise.uniform(-0.1, 0.1) if loss else None,
                memory_bytes=2**30 * (20 + rank / 8 + (number >= steps // 2)),
            )
            for number in range(steps)
        ]
        (folder / f"metrics/rank-{rank}.jsonl").write_text("".join(lines))
        heartbeat = {"rank": rank, "world_size": len(ranks), "step": steps, "steps": steps, "peak_memory_bytes": 2**35}
        (folder / f"heartbeats/rank-{rank}.json").write_text(json.dumps(heartbeat))
    return folder


def text_of(report: Report, *, width: int = 100, **how: object) -> str:
    out = io.StringIO()
    render_terminal(report, Console(file=out, width=width, **how))  # type: ignore[arg-type]
    return out.getvalue()


def page_of(report: Report) -> str:
    assert report.page is not None
    return Path(report.page).read_text()


class Page(HTMLParser):
    """The elements and texts of a page, and the attributes that would load or execute something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "img", "rect", "line", "path", "circle"):
            self.open.append(tag)
        loading = ("src", "href", "xlink:href")
        within = [value for name, value in attrs if name == "href" and (value or "").startswith("#")]
        self.loads += [
            f"{name}={value}"
            for name, value in attrs
            if (name in loading or name.startswith("on")) and value not in within
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "path", "circle", "line"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
