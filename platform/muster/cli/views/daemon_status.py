"""The output of `muster local status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from muster.text.humanize import format_duration, pluralize


def node_label_lines(shape: str) -> list[str]:
    """One line for each group of virtual nodes with labels set by the user."""
    from muster.local.nodes import HOST_SHAPE, parse_shape

    groups = parse_shape(shape) if shape != HOST_SHAPE else ()
    return [
        f"{group.count}x{group.gpus}: node labels {', '.join(f'{key}={value}' for key, value in group.labels.items())}"
        for group in groups
        if group.labels
    ]


def daemon_status_view(status: Mapping[str, Any], now: float) -> RenderableType:
    """Lines with the daemon's version, nodes, jobs and home folder."""
    up_for = format_duration(now - float(status["startedAt"]))
    nodes = pluralize(status["nodes"], "node") + (f" ({status['shape']})" if status["virtual"] else "")
    counts = f"{pluralize(status['running'], 'job')} running, {status['waiting']} waiting"
    if status.get("suspended"):  # absent from a daemon of an earlier version
        counts += f", {status['suspended']} suspended"
    lines = [
        Text.assemble(("●", "green"), f" daemon {status['version']}, pid {status['pid']}, up for {up_for}"),
        Text(f"  {nodes}, {counts}"),
        Text(f"  {status['home']}", style="dim"),
    ]
    if status["virtual"]:
        lines.append(Text(f"  {status['note']}", style="yellow"))
    return Group(*lines)
