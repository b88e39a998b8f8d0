"""The quota formulas, each against the words of the rule."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.snapshots import GPU, queue

from muster.model import QueueInfo, Quota
from muster.quota import UNLIMITED, QuotaUsage, queue_tree

CELL = ("h200", GPU)


def avail(queues: list[QueueInfo], used: dict[str, int]) -> dict[str, int]:
    """What each queue may still use, after charging."""
    tree = queue_tree(queues)
    charges = QuotaUsage(tree)
    for name, amount in used.items():
        charges.add(tree.index[name], ((tree.cell_index[CELL], amount),))
    return {queue.name: charges.available(tree.index[queue.name], tree.cell_index[CELL]) for queue in queues}


def test_a_queue_may_use_its_own_guarantee() -> None:
    assert avail([queue("root"), queue("a", "root", 16), queue("b", "root", 8)], {"a": 4, "b": 8})["a"] == 12


def test_a_queue_may_borrow_what_a_sibling_does_not_use() -> None:
    assert avail([queue("root"), queue("a", "root", 16), queue("b", "root", 8)], {"b": 3})["a"] == 16 + 5


def test_a_queue_never_uses_more_than_its_limit_borrowed_included() -> None:
    assert avail([queue("root"), queue("a", "root", 8, 12), queue("b", "root", 80)], {"a": 2})["a"] == 10


def test_a_queue_lends_at_most_its_lend_limit() -> None:
    assert avail([queue("root"), queue("a", "root", 8), queue("b", "root", 16, lend=4)], {})["a"] == 8 + 4


def test_what_a_queue_keeps_is_not_counted_against_its_siblings() -> None:
    tree = [queue("root"), queue("a", "root", 8), queue("b", "root", 16, lend=4)]
    assert avail(tree, {"b": 12})["a"] == 12
    assert avail(tree, {"b": 13})["a"] == 11


def test_lending_goes_up_and_down_the_tree() -> None:
    tree = [queue("co"), queue("x", "co"), queue("y", "co"), queue("x1", "x", 8), queue("y1", "y", 24, lend=10)]
    assert avail(tree, {})["x1"] == 18


def test_an_inner_limit_binds_all_below_it() -> None:
    tree = [queue("co", guaranteed=100), queue("x", "co", 0, 10), queue("x1", "x", 0), queue("x2", "x", 0)]
    assert avail(tree, {"x1": 7}) == {"co": 93, "x": 3, "x1": 3, "x2": 3}


def test_an_inner_limit_binds_even_where_a_queue_keeps_a_guarantee_for_itself() -> None:
    tree = [queue("co", guaranteed=100), queue("x", "co", 10, 10), queue("x1", "x", 10, lend=0), queue("x2", "x", 0)]
    assert avail(tree, {"x2": 8})["x1"] == 2, "with its own ten, x would use eighteen"


def test_absent_means_nothing_guaranteed_no_limit_and_all_lent() -> None:
    tree = queue_tree([queue("root", guaranteed=8), QueueInfo("a", "root")])
    cell = tree.cell_index[CELL]
    assert (tree.guaranteed[1][cell], tree.limit[1][cell], tree.local_quota[0][cell]) == (0, UNLIMITED, 0)


def test_an_inner_queues_guarantee_counts_as_at_least_its_childrens_sum() -> None:
    tree = queue_tree([queue("root", guaranteed=8), queue("a", "root", 8), queue("b", "root", 8)])
    assert tree.guaranteed[0][tree.cell_index[CELL]] == 16


def test_a_root_with_a_limit_and_no_guarantee_has_what_it_is_limited_to() -> None:
    assert avail([queue("root", limit=24)], {"root": 8}) == {"root": 16}


def test_queues_below_a_root_with_a_limit_alone_borrow_the_rest_of_it() -> None:
    tree = [queue("root", limit=24), queue("a", "root", 8), queue("b", "root")]
    assert avail(tree, {"b": 4}) == {"root": 20, "a": 20, "b": 20}


def test_what_a_queue_below_a_root_with_a_limit_alone_keeps_is_not_lent_to_others() -> None:
    tree = [queue("root", limit=24), queue("a", "root", 8, lend=0), queue("b", "root")]
    assert avail(tree, {"b": 10}) == {"root": 6, "a": 14, "b": 6}


def test_a_root_that_guarantees_nothing_in_so_many_words_has_nothing_whatever_its_limit() -> None:
    assert avail([queue("root", guaranteed=0, limit=24)], {}) == {"root": 0}


def test_a_limit_alone_gives_nothing_to_a_queue_below_another_one() -> None:
    assert avail([queue("root", guaranteed=0), queue("a", "root", limit=24)], {})["a"] == 0


def test_avail_is_negative_when_over_admitted() -> None:
    assert avail([queue("root", guaranteed=8)], {"root": 11})["root"] == -3


def test_roots_never_borrow_from_each_other() -> None:
    assert avail([queue("r1", guaranteed=8), queue("r2", guaranteed=80)], {})["r1"] == 8


# -- the same formulas once more, written as in docs/concepts/scheduling.md, compared with the tables of the planner


class Words:
    """The formulas word by word, recursive, for one cell."""

    def __init__(self, queues: list[QueueInfo], used: dict[str, int]) -> None:
        self.by = {queue.name: queue for queue in queues}
        self.children = {name: [q.name for q in queues if q.parent == name] for name in self.by}
        self.used = used
        self.total = cache(self._total)
        self.usage = cache(self._usage)
        self.avail = cache(self._avail)

    def quota(self, name: str) -> Quota:
        return next(iter(self.by[name].quotas), Quota("h200", GPU))

    def guaranteed(self, name: str) -> int:
        own = self.quota(name).guaranteed
        if own is None and self.by[name].parent is None:
            own = self.quota(name).limit
        return max(own or 0, sum(self.guaranteed(child) for child in self.children[name]))

    def _total(self, name: str) -> int:
        own = max(0, self.guaranteed(name) - sum(self.guaranteed(child) for child in self.children[name]))
        return own + sum(self.lent(child) for child in self.children[name])

    def lent(self, name: str) -> int:
        lend = self.quota(name).lend
        return self.total(name) if lend is None else min(lend, self.total(name))

    def kept(self, name: str) -> int:
        return self.total(name) - self.lent(name)

    def below(self, name: str) -> int:
        return self.used.get(name, 0) + sum(self.below(child) for child in self.children[name])

    def _usage(self, name: str) -> int:
        if not self.children[name]:
            return self.used.get(name, 0)
        return sum(max(0, self.usage(child) - self.kept(child)) for child in self.children[name])

    def slack(self, name: str) -> int:
        limit, parent = self.quota(name).limit, self.by[name].parent
        own = UNLIMITED if limit is None else limit - self.below(name)
        return own if parent is None else min(own, self.slack(parent))

    def _avail(self, name: str) -> int:
        parent = self.by[name].parent
        if parent is None:
            return min(self.total(name) - self.usage(name), self.slack(name))
        return min(self.slack(name), max(0, self.kept(name) - self.usage(name)) + self.avail(parent))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[QueueInfo], dict[str, int]]:
    """A tree of up to four levels with random quotas, and what its leaves use."""
    whole = draw(st.integers(0, 40))
    queues = [queue("q0", None, limit=whole) if draw(st.booleans()) else queue("q0", None, whole)]
    depth = {"q0": 0}
    for i in range(1, draw(st.integers(1, 9))):
        parent = draw(st.sampled_from([q.name for q in queues if depth[q.name] < 3]))
        amounts = [draw(st.none() | st.integers(0, 20)) for _ in range(3)]
        queues.append(queue(f"q{i}", parent, *amounts))
        depth[f"q{i}"] = depth[parent] + 1
    leaves = [q.name for q in queues if not any(other.parent == q.name for other in queues)]
    return queues, {leaf: draw(st.integers(0, 30)) for leaf in leaves}


@given(trees())
def test_the_quota_formulas_nomination_at_every_node_of_the_tree(case: tuple[list[QueueInfo], dict[str, int]]) -> None:
    queues, used = case
    words = Words(queues, used)
    assert avail(queues, used) == {q.name: words.avail(q.name) for q in queues}


@given(trees())
def test_what_all_queues_may_use_at_once_is_what_each_may_use(case: tuple[list[QueueInfo], dict[str, int]]) -> None:
    queues, used = case
    tree = queue_tree(queues)
    charges = QuotaUsage(tree)
    for name, amount in used.items():
        charges.add(tree.index[name], tuple((cell, amount) for cell in tree.cell_index.values()))
    each = [[charges.available(q, cell) for cell in range(charges.cell_count)] for q in range(len(queues))]
    assert charges.available_table().tolist() == each


@given(trees(), st.randoms(use_true_random=False))
def test_charging_and_giving_back_in_any_order_leaves_no_trace(
    case: tuple[list[QueueInfo], dict[str, int]], order: object
) -> None:
    queues, used = case
    tree = queue_tree(queues)
    cell = tree.cell_index[CELL]
    charges = QuotaUsage(tree)
    steps = [(name, amount) for name, amount in used.items()]
    for name, amount in steps:
        charges.add(tree.index[name], ((cell, amount),))
    order.shuffle(steps)  # type: ignore[attr-defined]
    for name, amount in steps:
        charges.add(tree.index[name], ((cell, amount),), -1)
    assert charges.subtree_usage == QuotaUsage(tree).subtree_usage
    assert charges.usage == QuotaUsage(tree).usage
