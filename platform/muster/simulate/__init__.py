"""The very same engine and planner on a cluster in memory, under a virtual clock.

workload = read_workload(Path("nodes.csv"), Path("jobs.csv"))
result = run(workload, POLICIES["muster"])
results = compare(workload)
"""

from __future__ import annotations

from muster.engine import POLICIES
from muster.simulate.cluster import SimCluster
from muster.simulate.result import Refusal, Result, Spread, write_placements
from muster.simulate.rows import BadRow, JobRow, NodeRow, read_jobs, read_nodes
from muster.simulate.run import Progress, Setup, compare, run
from muster.simulate.work import Work
from muster.simulate.workload import Habits, Workload, read_workload

__all__ = [
    "POLICIES",
    "BadRow",
    "Habits",
    "JobRow",
    "NodeRow",
    "Progress",
    "Refusal",
    "Result",
    "Setup",
    "SimCluster",
    "Spread",
    "Work",
    "Workload",
    "compare",
    "read_jobs",
    "read_nodes",
    "read_workload",
    "run",
    "write_placements",
]
