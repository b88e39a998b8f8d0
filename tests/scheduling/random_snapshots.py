"""Random snapshots for property tests, mixed enough to meet every rule.

Each is of a cluster in use: gangs that run were placed by the planner, some have ended since, some are being evicted,
and there are nominations. So a property of one plan is checked for plans at any time of a cluster's life. Snapshots
come from a seed, so that most of them are busy; hypothesis shrinks the size.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import strategies as st
from tests.scheduling.snapshots import (
    A100,
    GPU,
    H200,
    HOUR,
    carried_out,
    gang,
    gpus,
    inputs,
    left,
    on,
    queue,
    rack,
    run,
)

from muster.model import DecayedUsage, Gang, NodeInfo, QueueInfo, Quota, Role, RunningGang, Snapshot, Topology
from muster.scheduling import plan


def cluster(draw: Random) -> tuple[NodeInfo, ...]:
    """Two to four racks of h200 in two blocks, and perhaps a rack of a100; now and then a node is down."""
    nodes: list[NodeInfo] = []
    for i in range(draw.randint(2, 4)):
        nodes += rack(f"r{i}", draw.randint(1, 4), size=draw.choice((4, 8, 8)), block=f"b{i // 2}")
    if draw.random() < 0.4:
        nodes += rack("x", draw.randint(1, 3), block="bx", flavor="a100")
    if draw.random() < 0.2:
        down = draw.randrange(len(nodes))
        nodes[down] = replace(nodes[down], schedulable=False)
    return tuple(nodes)


def queue_tree(draw: Random, capacity: int) -> tuple[QueueInfo, ...]:
    """A root, up to two departments, two to five leaves; all name h200, some a100."""
    queues = [queue("co", None, draw.choice((0, capacity // 2, capacity)))]
    if draw.random() < 0.2:
        queues = [queue("co", limit=capacity)]
    if draw.random() < 0.4:
        extra = queue("co", None, draw.choice((8, 24)), flavor="a100")
        queues[0] = replace(queues[0], quotas=queues[0].quotas + extra.quotas)
    parents = ["co"]
    for i in range(draw.randint(0, 2)):
        lend = draw.choice((None, None, 8))
        guaranteed = draw.choice((None, 8, capacity // 2))
        limit = draw.choice((None, None, (guaranteed or 0) + 8))
        queues.append(queue(f"d{i}", "co", guaranteed, limit, lend))
        parents.append(f"d{i}")
    for i in range(draw.randint(2, 5)):
        guaranteed = draw.choice((None, 0, 4, 8, 16))
        limit = draw.choice((None, None, None, (guaranteed or 0) + 8))
        leaf = queue(f"q{i}", draw.choice(parents), guaranteed, limit, draw.choice((None, None, 0, 8)))
        delay_s = draw.choice((None, None, 0.0, 60.0, 600.0))
        queues.append(replace(leaf, weight=draw.choice((0.5, 1.0, 2.0)), reservation_delay_s=delay_s))
    return tuple(queues)


def gangs(draw: Random, prefix: str, count: int, queues: tuple[QueueInfo, ...], at: float) -> tuple[Gang, ...]:
    """Gangs elastic or not, of one role or two, with a topology or without."""
    names = [q.name for q in queues if q.name.startswith("q")]
    return tuple(_gang(draw, f"{prefix}{i}", draw.choice(names), at + draw.randint(0, 3)) for i in range(count))


def _gang(draw: Random, uid: str, queue: str, at: float) -> Gang:
    roles = []
    for name in ("trainer", "helper")[: draw.choice((1, 1, 1, 2))]:
        pods = draw.choice((1, 1, 2, 2, 3, 5))
        least = draw.randint(1, pods) if draw.random() < 0.4 else pods
        size = draw.choice((0, 1, 2)) if name == "helper" else draw.choice((1, 4, 4, 8))
        roles.append(Role(name, pods, least, gpus(size, cpu=draw.choice((1, 8)))))
    required, preferred = (draw.choice((None, None, "rack", "block")) for _ in range(2))
    runtime = draw.choice((None, 0.1, 0.5, 1.0, 2.0))
    return Gang(
        uid=uid,
        name=f"ns/{uid}",
        queue=queue,
        priority=draw.choice((0, 0, 1, 5)),
        submitted_at=at,
        roles=tuple(roles),
        flavors=draw.choice(((), (), ("h200",), ("a100", "h200"))),
        topology=Topology(required, preferred) if required or preferred else None,
        max_runtime_s=None if runtime is None else runtime * HOUR,
    )


def history(seed: int, rounds: int, size: int) -> tuple[Snapshot, ...]:
    """A few snapshots, each what became of the one before: plans carried out, gangs come and gone."""
    draw = Random(seed)
    nodes = cluster(draw)
    queues = queue_tree(draw, sum(node.allocatable.get(GPU) for node in nodes if node.flavor == "h200"))
    usage = tuple(
        DecayedUsage(q.name, "h200", GPU, draw.randint(0, 4) * HOUR) for q in queues if q.name.startswith("q")
    )
    snapshot = Snapshot(1000.0, nodes, (H200, A100), queues, gangs(draw, "a", size, queues, 0.0), (), usage=usage)
    snapshots = [snapshot]
    for round_ in range(rounds):
        snapshot = carried_out(snapshot, plan(snapshot).decisions)
        if draw.random() < 0.4:
            snapshot = left(snapshot)
        running = tuple(changed for r in snapshot.running if (changed := _lived(draw, r, snapshot.now)) is not None)
        snapshot = replace(
            snapshot,
            now=snapshot.now + draw.choice((1.0, 60.0, 700.0)),
            pending=snapshot.pending + gangs(draw, "bcd"[round_], draw.randint(1, size), queues, 10.0 + round_),
            running=running,
        )
        snapshots.append(snapshot)
    return tuple(snapshots)


def _lived(draw: Random, running: RunningGang, now: float) -> RunningGang | None:
    """What became of a running gang: most go on, some save their work, stop or are gone."""
    match draw.randrange(12):
        case 0:
            return None
        case 1 if running.state == "admitted":
            return replace(running, state="terminating")
        case 2 | 3 | 4:
            return replace(running, checkpoint_at=now)
        case 5 if running.state == "admitted":
            return _coming_back(draw, running, now)
        case _:
            return running


def _coming_back(draw: Random, running: RunningGang, now: float) -> RunningGang:
    """A gang that lost some of its nodes and keeps the others."""
    left = (replace(part, nodes=tuple(n for n in part.nodes if draw.random() < 0.7)) for part in running.placement)
    keeps = tuple(part for part in left if part.nodes)
    return replace(running, state="evicting", retained_placement=keeps, retained_until=now + 3000.0 if keeps else None)


EITHER = ("h200", "a100")


def both(name: str, h200: int, a100: int, parent: str | None = "co") -> QueueInfo:
    """A queue with so many GPUs of each flavor guaranteed."""
    return QueueInfo(name, parent, quotas=(Quota("h200", GPU, h200, None, None), Quota("a100", GPU, a100, None, None)))


def two_flavors(seed: int) -> Snapshot:
    """Three teams with guarantees in two flavors, some of whose gangs run anywhere, and more of them that wait."""
    draw = Random(seed)
    nodes = [*rack("h", draw.randint(1, 3)), *rack("a", draw.randint(1, 3), flavor="a100")]
    teams = [both(name, draw.choice((0, 8, 16)), draw.choice((0, 8, 16))) for name in ("q0", "q1", "q2")]
    running: list[RunningGang] = []
    for node in nodes:
        left = 8
        while left and draw.random() < 0.7:
            size = draw.choice([size for size in (4, 8) if size <= left])
            left -= size
            one = gang(f"r{len(running)}", f"q{draw.randrange(3)}", size=size, priority=draw.choice((0, 0, 1)))
            place = on([node.name], flavor=node.flavor or "")
            running.append(RunningGang(one, place, float(draw.randint(0, 900)), started_at=0.0))
    waiting = []
    for i in range(draw.randint(2, 7)):
        pods, size = draw.choice(((1, 4), (1, 8), (2, 4), (2, 8), (3, 4)))
        flavors = draw.choice((("h200",), ("a100",), EITHER, EITHER, EITHER[::-1]))
        leaf, priority = f"q{draw.randrange(3)}", draw.choice((0, 0, 1, 5))
        waiting.append(gang(f"w{i}", leaf, pods, size=size, priority=priority, at=float(i), flavors=flavors))
    used = tuple(DecayedUsage(f"q{i}", flavor, GPU, draw.randint(0, 4) * 3600.0) for i in range(3) for flavor in EITHER)
    return inputs(nodes, [both("co", 0, 0, None), *teams], waiting, running, usage=used)


def tight(seed: int) -> Snapshot:
    """Full nodes of queue a, which is a little above its guarantee, and gangs of b that want more back than a has
    borrowed, or all of it in one rack; so many trials begin that come to nothing (a third of these snapshots)."""
    draw = Random(seed)
    nodes = rack("r1", draw.randint(1, 3)) + rack("r2", draw.randint(1, 3))
    running: list[RunningGang] = []
    for node in nodes:
        left = 8 - draw.choice((0, 0, 1, 4))
        while left > 0:
            size = min(left, draw.choice((1, 2, 4, 8)))
            uid = f"r{len(running)}"
            since = float(draw.randint(0, 900))
            running.append(run(gang(uid, "a", size=size, priority=draw.choice((0, 2))), [node.name], since=since))
            left -= size
    used = sum(r.gang.roles[0].request.get("nvidia.com/gpu") for r in running)
    queues = [queue("co"), queue("a", "co", max(0, used - draw.choice((1, 2, 4, 8)))), queue("b", "co", 24)]
    waiting = []
    for i in range(draw.randint(2, 6)):
        pods, size = draw.choice(((1, 4), (1, 8), (2, 4), (2, 8), (3, 8), (1, 1), (1, 2)))
        required, leaf = draw.choice((None, "rack")), draw.choice(("b", "b", "a"))
        priority = draw.choice((0, 1))
        waiting.append(gang(f"w{i}", leaf, pods=pods, size=size, priority=priority, at=float(i), required=required))
    return inputs(nodes, queues, waiting, running)


histories = st.builds(history, st.integers(0, 1 << 32), st.integers(1, 3), st.integers(2, 9))
snapshots = histories.map(lambda history: history[-1])
