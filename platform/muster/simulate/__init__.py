"""The very same engine and planner on a cluster in memory, under a virtual clock.

workload = read_workload(Path("nodes.csv"), Path("jobs.csv"))
result = run(workload, POLICIES["muster"])
results = compare(workload)
"""

from __future__ import annotations

from muster.engine import POLICIES
from muster.simulate.cluster import SimCluster
from muster.simulate.result import DurationStats, RefusedJob, SimulationResult, write_placements
from muster.simulate.run import SimulationConfig, SimulationProgress, compare, run
from muster.simulate.trace_csv import InvalidRow, TraceJob, TraceNode, read_jobs, read_nodes
from muster.simulate.work import JobBehavior
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
    "compare",
    "read_jobs",
    "read_nodes",
    "read_workload",
    "run",
    "write_placements",
]
