"""The planner: which gangs start, where, and why the others wait: `plan(snapshot, cache, policy)`.

from muster.scheduling import plan
result = plan(snapshot)
result = plan(next_snapshot, result.cache)   # the same decisions as without the cache, faster
"""

from muster.scheduling.cycle import PlanResult, plan
from muster.scheduling.nodes import placement_error
from muster.scheduling.order import BACKFILL, FIFO, MUSTER, PRIORITY, Policy
from muster.scheduling.planner_cache import PlannerCache

__all__ = ["BACKFILL", "FIFO", "MUSTER", "PRIORITY", "PlanResult", "PlannerCache", "Policy", "placement_error", "plan"]
