"""The very same engine and planner on a cluster in memory, under a virtual clock.

workload = read_workload(Path("nodes.csv"), Path("jobs.csv"))
result = run(workload, POLICIES["muster"])
results = compare(workload)
"""

from __future__ import annotations

from muster.engine import POLICIES
from muster.simulate.cluster import SimCluster
from muster.simulate.result import RefusedJob, SimulationResult, DurationStats, write_placements
from muster.simulate.trace_csv import InvalidRow, TraceJob, TraceNode, read_jobs, read_nodes
from muster.simulate.run import SimulationProgress, SimulationConfig, compare, run
from muster.simulate.work import JobBehavior
from muster.simulate.workload import WorkloadAssumptions, RecordedWorkload, read_workload

__all__ = [
    "POLICIES",
    "InvalidRow",
    "WorkloadAssumptions",
    "TraceJob",
    "TraceNode",
    "SimulationProgress",
    "RefusedJob",
    "SimulationResult",
    "SimulationConfig",
    "SimCluster",
    "DurationStats",
    "JobBehavior",
    "RecordedWorkload",
    "compare",
    "read_jobs",
    "read_nodes",
    "read_workload",
    "run",
    "write_placements",
]
