"""The checker's formulas against those of the planner: written twice, independently, from one definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.chaos.checker import objects
from tests.cluster.chaos.checker.quota import Tree

from muster import model
from muster.quota import QuotaUsage, queue_tree

CELL = ("any", "gpu")


@st.composite
def charged_trees(draw: st.DrawFn) -> tuple[list[model.QueueInfo], dict[str, int]]:
    """A tree of up to 7 queues and what is charged to its leaves."""
    parents: list[int] = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(1, 7)))]
    queues = []
    for index, parent in enumerate(parents):
        guaranteed, more = draw(st.none() | st.integers(0, 8)), draw(st.none() | st.integers(0, 8))
        limit = None if more is None else (guaranteed or 0) + more
        quota = model.Quota(*CELL, guaranteed=guaranteed, limit=limit, lend=draw(st.none() | st.integers(0, 8)))
        name = None if parent < 0 else f"q{parent}"
        queues.append(model.QueueInfo(f"q{index}", parent=name, quotas=(quota,)))
    leaves = [f"q{index}" for index in range(len(parents)) if index not in parents]
    return queues, {leaf: draw(st.integers(0, 12)) for leaf in leaves}


@given(charged_trees(), st.integers(0, 12))
def test_both_allow_the_same(charged_tree: tuple[list[model.QueueInfo], dict[str, int]], requested: int) -> None:
    queues, charged = charged_tree
    tree = queue_tree(queues)
    charges = QuotaUsage(tree)
    for leaf, amount in charged.items():
        charges.add(tree.index[leaf], [(tree.cell_index[CELL], amount)])
    checked = Tree(
        {
            queue.name: objects.Queue(
                queue.name,
                queue.parent,
                {(q.flavor, q.resource): (q.guaranteed, q.limit, q.lend) for q in queue.quotas},
            )
            for queue in queues
        }
    )
    taken = {leaf: {CELL: amount} for leaf, amount in charged.items()}
    for leaf in charged:
        assert checked.available(leaf, CELL, taken) == charges.available(tree.index[leaf], tree.cell_index[CELL])
        allowed = charges.fits(tree.index[leaf], [(tree.cell_index[CELL], requested)])
        assert (not checked.refuses(leaf, {CELL: requested}, taken)) == (allowed or requested == 0)
