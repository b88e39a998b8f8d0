"""The five quota formulas once more, in their own words, over every queue and resource after every plan."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.builders import two_teams
from tests.scheduling.random_snapshots import snapshots
from tests.scheduling.snapshots import (
    carried_out,
    evicted,
    gang,
    inputs,
    left,
    nodes_of,
    nominated,
    rack,
    run,
)

from muster.model import Admit, Evict, Placement, Quota, Resize, RunningGang, Snapshot, Wait
from muster.scheduling import plan

Cell = tuple[str, str]
FAR = 1 << 60


class Tree:
    """G = L of a root without G; own = max(0, G - sum of the children's G); T = own + sum of lent;
    lent = min(K, T); kept = T - lent; U(inner) = sum of max(0, U(child) - kept(child)); avail(root) = T - U;
    avail(q) = min(L - all usage below q, max(0, kept - U) + avail(parent)), and no more than any limit above leaves."""

    def __init__(self, snapshot: Snapshot, cell: Cell, used: Counter[str]) -> None:
        self.parent = {q.name: q.parent for q in snapshot.queues}
        self.says = {
            q.name: quota for q in snapshot.queues for quota in q.quotas if (quota.flavor, quota.resource) == cell
        }
        self.used, self.below = used, defaultdict[str | None, list[str]](list)
        for name, above in self.parent.items():
            self.below[above].append(name)

    def says_of(self, q: str) -> Quota:
        return self.says.get(q, Quota("", ""))

    def g(self, q: str) -> int:
        own = self.says_of(q).guaranteed
        if own is None and self.parent[q] is None:
            own = self.says_of(q).limit
        return max(own or 0, sum(self.g(child) for child in self.below[q]))

    def t(self, q: str) -> int:
        own = max(0, self.g(q) - sum(self.g(child) for child in self.below[q]))
        return own + sum(self.t(child) - self.kept(child) for child in self.below[q])

    def kept(self, q: str) -> int:
        k = self.says_of(q).lend
        return self.t(q) - min(self.t(q) if k is None else k, self.t(q))

    def u(self, q: str) -> int:
        return sum(max(0, self.u(c) - self.kept(c)) for c in self.below[q]) if self.below[q] else self.used[q]

    def all_below(self, q: str) -> int:
        return self.used[q] + sum(self.all_below(child) for child in self.below[q])

    def avail(self, q: str) -> int:
        above = self.parent[q]
        avail = self.t(q) - self.u(q) if above is None else max(0, self.kept(q) - self.u(q)) + self.avail(above)
        return min(self.slack(q), avail)

    def slack(self, q: str) -> int:
        limit, above = self.says_of(q).limit, self.parent[q]
        own = (FAR if limit is None else limit) - self.all_below(q)
        return own if above is None else min(own, self.slack(above))


def charged(snapshot: Snapshot) -> dict[Cell, Counter[str]]:
    """Usage of each leaf by cell: what runs, what still terminates, and nominations."""
    gangs = {g.uid: g for g in (*snapshot.pending, *(r.gang for r in snapshot.running))}
    live = {r.gang.uid for r in snapshot.running if not (r.state == "evicting" and not r.retained_placement)}
    live -= {r.gang.uid for r in snapshot.running if r.state == "terminating"}
    places: list[tuple[str, Placement]] = [(r.gang.uid, r.placement) for r in snapshot.running]
    places += [
        (h.gang_uid, h.placement)
        for h in snapshot.nominations
        if h.expires_at > snapshot.now and h.gang_uid in gangs.keys() - live
    ]
    total = defaultdict[Cell, Counter[str]](Counter)
    for uid, placement in places:
        request = {role.name: role.request for role in gangs[uid].roles}
        for part in placement:
            for resource, amount in request[part.role]:
                total[part.flavor, resource][gangs[uid].queue] += amount * part.replicas
    return total


def cells_of(snapshot: Snapshot) -> set[Cell]:
    return {(quota.flavor, quota.resource) for q in snapshot.queues for quota in q.quotas}


@given(snapshots)
def test_after_every_plan_no_queue_of_the_tree_is_further_over_its_quota_than_before(snapshot: Snapshot) -> None:
    # Right after gangs have started and grown, and once all victims are gone.
    decisions = plan(snapshot).decisions
    running = {r.gang.uid for r in snapshot.running}
    at_once = [
        d
        for d in decisions
        if isinstance(d, Admit)
        or (isinstance(d, Resize) and d.reason == "Grown")
        or (isinstance(d, Evict) and d.gang_uid not in running)  # loses its nomination
    ]
    before = charged(snapshot)
    for after in (carried_out(snapshot, at_once), left(carried_out(snapshot, decisions))):
        used = charged(after)
        for cell in cells_of(snapshot):
            earlier, later = Tree(snapshot, cell, before[cell]), Tree(snapshot, cell, used[cell])
            for queue in snapshot.queues:
                assert later.avail(queue.name) >= min(0, earlier.avail(queue.name)), (queue.name, cell)


@given(snapshots)
def test_quota_exceeded_is_reported_only_when_it_is_true(snapshot: Snapshot) -> None:
    decisions = plan(snapshot).decisions
    after = carried_out(snapshot, decisions)
    used, by_uid = charged(after), {g.uid: g for g in snapshot.pending}
    for wait in (d for d in decisions if isinstance(d, Wait) and d.reason == "QuotaExceeded"):
        waiting = by_uid[wait.gang_uid]
        flavor = next(flavor for flavor in ("h200", "a100") if f" of {flavor};" in wait.message)
        needs = Counter[Cell]()
        for role in waiting.roles:
            for resource, amount in role.request:
                needs[flavor, resource] += amount * role.min_replicas
        named = [cell for cell in needs if cell in cells_of(snapshot)]
        assert any(needs[c] > Tree(snapshot, c, used[c]).avail(waiting.queue) for c in named), wait.message


@st.composite
def lent_out(draw: st.DrawFn) -> tuple[Snapshot, int]:
    """Nodes that small gangs of `b` fill, all of it; and how many whole nodes `a` wants back of its guarantee."""
    count = draw(st.integers(2, 5))
    wanted = draw(st.integers(1, count))
    running: list[RunningGang] = []
    for node in range(count):
        left = 8
        while left:
            size = draw(st.sampled_from([size for size in (1, 2, 4, 8) if size <= left]))
            left -= size
            one = gang(f"b{len(running)}", "b", size=size, priority=draw(st.integers(0, 2)))
            running.append(run(one, [f"r1-{node}"], since=float(draw(st.integers(0, 900)))))
    queues = two_teams(8 * wanted, 8 * (count - wanted))
    return inputs(rack("r1", count), queues, [gang("owner", "a", pods=wanted)], running), wanted


@given(lent_out())
def test_whole_nodes_within_a_guarantee_are_taken_back_however_thinly_they_were_lent(
    lent: tuple[Snapshot, int],
) -> None:
    snapshot, wanted = lent
    result = plan(snapshot)
    places = {r.gang.uid: r.placement[0].nodes[0][0] for r in snapshot.running}
    left = Counter(places[uid] for uid in evicted(result))
    assert len(left) == wanted
    assert left == Counter(node for node in places.values() if node in left), (
        "all gangs of these nodes are evicted, and no others"
    )
    assert set(nodes_of(nominated(result)["owner"].placement)) == set(left)
