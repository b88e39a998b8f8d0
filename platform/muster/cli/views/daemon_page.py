"""What `muster local status` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from muster.cli.views.amounts import duration, plural


def daemon_page(status: Mapping[str, Any], now: float) -> RenderableType:
    """Three lines: who it is, what it shows and does, where it lives."""
    up_for = duration(now - float(status["startedAt"]))
    nodes = plural(status["nodes"], "node") + (f" ({status['shape']})" if status["pretended"] else "")
    counts = f"{plural(status['running'], 'job')} running, {status['waiting']} waiting"
    if status.get("suspended"):  # a daemon of an earlier version does not say
        counts += f", {status['suspended']} suspended"
    lines = [
        Text.assemble(("●", "green"), f" daemon {status['version']}, pid {status['pid']}, up for {up_for}"),
        Text(f"  {nodes}, {counts}"),
        Text(f"  {status['home']}", style="dim"),
    ]
    if status["pretended"]:
        lines.append(Text(f"  {status['note']}", style="yellow"))
    return Group(*lines)
