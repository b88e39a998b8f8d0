"""What a simulation found: the same figures for every policy, and every stay of every pod for whoever audits it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from muster.simulate.metrics import PodRun
from muster.simulate.trace_csv import TraceJob

PLACEMENT_COLUMNS = ("job", "pod", "node", "gpus", "cpu_milli", "memory_mib", "start_s", "end_s", "outcome")


@dataclass(frozen=True, slots=True)
class DurationStats:
    """How a duration is spread over jobs, in seconds (percentiles interpolated linearly); zeros without any job."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> DurationStats:
        """The spread of these values."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        array = np.array(values, dtype=np.float64)
        p50, p95, p99 = (float(value) for value in np.percentile(array, (50, 95, 99)))
        return cls(float(array.mean()), p50, p95, p99)

    def to_json(self) -> dict[str, float]:
        """Rounded to milliseconds."""
        return {name: round(getattr(self, name), 3) for name in ("mean", "p50", "p95", "p99")}


@dataclass(frozen=True, slots=True)
class RefusedJob:
    """A job that could not start even on the empty cluster."""

    job: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """One policy's figures; docs/simulation.md defines each. `notes` are for people."""

    policy: str
    jobs: int
    completed: int
    refused: int
    wait_s: DurationStats
    jct_s: DurationStats
    gpu_utilization: float
    fragmentation: float
    preemptions: int
    lost_work_s: float
    makespan_s: float
    wall_s: float
    refused_jobs: tuple[RefusedJob, ...] = ()
    pod_runs: tuple[PodRun, ...] = ()
    job_rows: Mapping[str, TraceJob] = field(default_factory=dict)  # by job uid, as in `stays`
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The keys of `muster simulate --json`."""
        return {
            "policy": self.policy,
            "jobs": self.jobs,
            "completed": self.completed,
            "refused": self.refused,
            "wait_s": self.wait_s.to_json(),
            "jct_s": self.jct_s.to_json(),
            "gpu_utilization": round(self.gpu_utilization, 6),
            "fragmentation": round(self.fragmentation, 6),
            "preemptions": self.preemptions,
            "lost_work_s": round(self.lost_work_s, 3),
            "makespan_s": round(self.makespan_s, 3),
            "wall_s": round(self.wall_s, 3),
        }


def write_placements(path: Path, pod_runs: Sequence[PodRun], rows: Mapping[str, TraceJob]) -> None:
    """One line for every stay of a pod on a node, by start; `rows` is by job uid (`Result.rows`). Raises OSError."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(PLACEMENT_COLUMNS)
        for stay in sorted(pod_runs, key=lambda stay: (stay.start_s, stay.job, stay.pod)):
            row = rows[stay.job]
            name = row.name + stay.pod.removeprefix(stay.job)
            amounts = (row.gpus_per_pod, row.cpu_milli, row.memory_mib)
            lines.writerow(
                (row.name, name, stay.node, *amounts, f"{stay.start_s:.6f}", f"{stay.end_s:.6f}", stay.outcome)
            )
