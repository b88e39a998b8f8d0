"""Runs the engine and planner on a simulated cluster in memory with a virtual clock.

workload = read_workload(Path("nodes.csv"), Path("jobs.csv"))
result = run(workload, POLICIES["muster"])
"""

from __future__ import annotations

from muster.engine import POLICIES
from muster.simulate.cluster import SimCluster
from muster.simulate.metrics import DurationStats, RefusedJob, SimulationResult, write_placements
from muster.simulate.pods import JobBehavior
from muster.simulate.run import SimulationConfig, SimulationProgress, run
from muster.simulate.trace_csv import InvalidRow, TraceJob, TraceNode, read_jobs, read_nodes
from muster.simulate.workload import RecordedWorkload, WorkloadAssumptions, read_workload

__all__ = [
    "POLICIES",
    "DurationStats",
    "InvalidRow",
    "JobBehavior",
    "RecordedWorkload",
    "RefusedJob",
    "SimCluster",
    "SimulationConfig",
    "SimulationProgress",
    "SimulationResult",
    "TraceJob",
    "TraceNode",
    "WorkloadAssumptions",
    "read_jobs",
    "read_nodes",
    "read_workload",
    "run",
    "write_placements",
]
