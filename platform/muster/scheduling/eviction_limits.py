"""How soon and how often a gang may be evicted for others.

A queue may set a minimum run time, within which its gangs are not evicted.

A gang that was evicted several times within an hour is left alone for a while. Of these evictions only those count that
were for gangs as far away in the tree of queues: otherwise a team could evict a job of its own for its other jobs, and
no other team could reclaim what that job has borrowed. For the same reason those do not count that were in another
queue: moving the job would turn evictions for the jobs of its team into those for others.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.model import EVICTION_WINDOW_S, MAX_EVICTIONS_PER_HOUR, Gang
from muster.quota import QueueTree
from muster.scheduling.releases import GangUsage


def exempt_until(tree: QueueTree, gang_usage: GangUsage) -> float:
    """Until when a running gang is not preempted: the minimum run time of its queue counts from its admission."""
    return gang_usage.running.admitted_at + (tree.min_runtime_s[gang_usage.queue] if gang_usage.queue >= 0 else 0.0)


def recent_evictions(gang: Gang, now: float) -> tuple[str, ...]:
    """For gangs of which queues a gang was evicted within the last hour, in its present queue."""
    here = ("", gang.queue)
    return tuple(one.queue for one in gang.evictions if one.at > now - EVICTION_WINDOW_S and one.gang_queue in here)


def is_limit_reached(tree: QueueTree, evictions: Sequence[str], queue: int, claimant: int) -> bool:
    """Whether a gang of `queue` with these recent evictions is not evicted for a gang of the queue `claimant`. Not
    counted: evictions for gangs below the queue that is next to the common ancestor of both, on the side of `queue`."""
    if len(evictions) < MAX_EVICTIONS_PER_HOUR:
        return False
    claimant_path = tree.path[claimant]
    side = [one for one in tree.path[queue] if one not in claimant_path]
    paths = (tree.path[tree.index[name]] if name in tree.index else () for name in evictions)
    return sum(not side or side[-1] not in path for path in paths) >= MAX_EVICTIONS_PER_HOUR
