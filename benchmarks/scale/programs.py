"""CPU, memory and metrics of running programs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_rss_mib(pid: int) -> float:
    """The most memory that a process has held since its start."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def metrics(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and values of one metric in Prometheus' text form."""
    for line in text.splitlines():
        if line.startswith(f"{name}{{"):
            inside, _, value = line.removeprefix(f"{name}{{").rpartition("} ")
            pairs = (pair.partition("=") for pair in inside.split('",'))
            yield {key: part.strip('"') for key, _, part in pairs}, float(value)


def difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What was added, by name; names without any left out."""
    changed = {key: value - before.get(key, 0.0) for key, value in now.items()}
    return {key: value for key, value in sorted(changed.items()) if value}


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
