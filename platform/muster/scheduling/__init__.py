"""Who starts, where, and who waits for what: `plan(snapshot, memo, policy)`.

from muster.scheduling import plan
result = plan(snapshot)
result = plan(next_snapshot, result.memo)   # the same decisions as without the memo, sooner
"""

from muster.scheduling.cycle import PlanResult, plan
from muster.scheduling.placement_check import placement_error
from muster.scheduling.planner_cache import PlannerCache
from muster.scheduling.policy import BACKFILL, FIFO, MUSTER, PRIORITY, Policy

__all__ = ["BACKFILL", "FIFO", "MUSTER", "PRIORITY", "PlanResult", "PlannerCache", "Policy", "placement_error", "plan"]
