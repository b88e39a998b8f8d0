"""What it costs to take a guarantee back: gangs of one GPU have borrowed every node, and one gang wants whole nodes.

`python benchmarks/planner.py --case reclaim` runs it. The small gangs started in turn, node after node, so that those
who started last are one on every node. In the last case a few GPUs are free and the borrower is above its guarantee by
less than a node, so that too few gangs may be evicted, in whatever order.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fill import GPU, GPUS_A_NODE, NODE, ROLE

from muster.model import (
    Evict,
    FlavorInfo,
    Gang,
    NodeInfo,
    Nominate,
    QueueInfo,
    Quota,
    Resources,
    Role,
    RolePlacement,
    RunningGang,
    Snapshot,
)
from muster.scheduling import plan

WHOLE = Resources.of({GPU: GPUS_A_NODE, "cpu": 8_000, "memory": 1 << 35, "pods": 1})


@dataclass(frozen=True, slots=True)
class Reclaim:
    """One plan, with the cache of the plan before the gang came; the seconds are of this process."""

    case: str
    nodes: int
    victims: int
    plan_s: float


def reclaim(nodes: int) -> Iterator[Reclaim]:
    """A twentieth of the nodes, half of them, and one that cannot be had."""
    for pods in (nodes // 20, nodes // 2):
        yield _timed(f"{pods} nodes of {nodes}", lent(nodes, pods), pods)
    yield _timed(f"one node of {nodes}, without effect", lent(nodes, 1, free=GPUS_A_NODE // 2), 1)


def lent(nodes: int, guaranteed: int, free: int = 0) -> Snapshot:
    """All nodes full of the borrower's gangs, but for so many GPUs; and the guarantee of the owner, in nodes."""
    rows = tuple(NodeInfo(f"n{i}", NODE, flavor="gpu", domains=(f"r{i // 20}",)) for i in range(nodes))
    own, rest = guaranteed * GPUS_A_NODE, (nodes - guaranteed) * GPUS_A_NODE
    queues = (
        QueueInfo("all"),
        QueueInfo("owner", "all", quotas=(Quota("gpu", GPU, guaranteed=own),)),
        QueueInfo("borrower", "all", quotas=(Quota("gpu", GPU, guaranteed=rest),)),
    )
    places = [(turn, node) for turn in range(GPUS_A_NODE) for node in range(nodes)]
    running = tuple(_borrower(turn, node) for turn, node in places[: len(places) - free])
    return Snapshot(10_000.0, rows, (FlavorInfo("gpu", ("rack",)),), queues, (), running)


def _borrower(turn: int, node: int) -> RunningGang:
    gang = Gang(f"b{turn}-{node}", f"ns/b{turn}-{node}", "borrower", 0, float(turn), (ROLE,))
    placement = (RolePlacement("main", "gpu", ((f"n{node}", 1),)),)
    return RunningGang(gang, placement, admitted_at=float(turn), started_at=float(turn))


def _timed(case: str, snapshot: Snapshot, pods: int) -> Reclaim:
    cache = plan(snapshot).cache
    owner = Gang("owner", "ns/owner", "owner", 0, snapshot.now, (Role("main", pods, pods, WHOLE),))
    snapshot = replace(snapshot, now=snapshot.now + 1, pending=(owner,))
    began = time.process_time()
    made = plan(snapshot, cache)
    took = time.process_time() - began
    victims = sum(isinstance(decision, Evict) for decision in made.decisions)
    ineffective = not any(isinstance(decision, Nominate) for decision in made.decisions)
    assert ineffective == (victims == 0) == case.endswith("without effect"), f"{case}: {victims} victims"
    return Reclaim(case, len(snapshot.nodes), victims, took)
