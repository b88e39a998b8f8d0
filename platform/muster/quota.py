"""How much a queue may still use: one tree of queues, five formulas (see docs/concepts/scheduling.md).

Used by the planner, the checks at submit, and tables.

Amounts are counted per cell, a (flavor, resource) pair. With G, L, K a queue's guaranteed, limit and lend:

    own    = max(0, G - sum of the children's G)      T = own + sum of the children's lent
    lent   = min(K, T)                                kept = T - lent
    U(leaf) = what is charged to it                   U(inner) = sum over children of max(0, U(child) - kept(child))
    avail(root) = T - U
    avail(q)    = min(L - all usage below q, max(0, kept - U) + avail(parent))

and never more than L - all usage below any queue above q: usage within a queue's local quota (kept) does not count
towards the U of queues above, but it does count towards their limits (docs/concepts/scheduling.md).

Absent: G = 0, L unlimited, K = T; but a root with a limit and without a guarantee has G = L: it cannot borrow, so
its limit is its guarantee. An inner queue's G counts as at least its children's sum. A cell that no queue on
the path from a leaf to its root names is neither limited nor charged there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from muster.model import MAX_AMOUNT, QueueInfo

IntArray = npt.NDArray[np.int64]

UNLIMITED = MAX_AMOUNT
_MAX_TOTAL = MAX_AMOUNT // 2  # limit for amounts of several queues: sums of two still fit 64 bits

DEFAULT_RESERVATION_DELAY_S = 6 * 3600.0
"""Where no queue on the path sets its own."""

CellAmounts: TypeAlias = Sequence[tuple[int, int]]
"""(cell, amount) pairs, each cell once."""


@dataclass(frozen=True, slots=True, eq=False)
class QueueTree:
    """The queues as indexes into tables; `table[queue][cell]`."""

    queues: tuple[QueueInfo, ...]
    index: dict[str, int]
    parent: tuple[int, ...]  # -1 for a root
    children: tuple[tuple[int, ...], ...]
    path: tuple[tuple[int, ...], ...]  # from the queue itself up to its root
    inactive_reason: tuple[str, ...]  # why the queue admits nothing; "" if it is active
    cell_index: dict[tuple[str, str], int]
    cell_names: tuple[tuple[str, str], ...]
    guaranteed: tuple[tuple[int, ...], ...]
    limit: tuple[tuple[int, ...], ...]
    subtree_quota: tuple[tuple[int, ...], ...]
    local_quota: tuple[tuple[int, ...], ...]
    named_cells: tuple[frozenset[int], ...]  # cells that the queue or one above it names
    flavors: tuple[tuple[str, ...], ...]  # flavors that the queue or one above it names, sorted
    priority_caps: tuple[int | None, ...]  # the lowest max_priority on the path
    # seconds after which a gang that has to borrow is scheduled before gangs within their guarantee; inf: never
    reservation_delay_s: tuple[float, ...]
    min_runtime_s: tuple[float, ...]  # for as long after its admission a gang is not preempted
    bottom_up: tuple[int, ...]  # all queues, children before parents
    depths: tuple[
        tuple[IntArray, IntArray], ...
    ]  # queues of one depth, in the order of their parents, and these; deepest first
    guaranteed_table: IntArray  # [queues, cells] `guaranteed` as an array

    def root(self, queue: int) -> int:
        return self.path[queue][-1]

    def cell_amounts(self, queue: int, flavor: str, resources: Iterable[tuple[str, int]]) -> CellAmounts:
        """What `resources` of a flavor charge to a queue: only cells that its path names."""
        cells = ((self.cell_index.get((flavor, name), -1), amount) for name, amount in resources)
        return tuple((cell, amount) for cell, amount in cells if cell in self.named_cells[queue])


def queue_tree(queues: Sequence[QueueInfo]) -> QueueTree:
    """Everything about the queues that does not depend on usage."""
    index = {queue.name: i for i, queue in enumerate(queues)}
    parent, inactive_reason = _parents(queues, index)
    children: list[list[int]] = [[] for _ in queues]
    for child, above in enumerate(parent):
        if above >= 0:
            children[above].append(child)
    path = tuple(_path(q, parent) for q in range(len(queues)))
    cell_names = tuple(sorted({(quota.flavor, quota.resource) for queue in queues for quota in queue.quotas}))
    cells = {name: i for i, name in enumerate(cell_names)}
    width = len(cells)
    guaranteed = [[0] * width for _ in queues]
    limit = [[UNLIMITED] * width for _ in queues]
    lend = [[UNLIMITED] * width for _ in queues]
    total = [[0] * width for _ in queues]
    lent = [[0] * width for _ in queues]
    own: list[set[int]] = [set() for _ in queues]
    for q, queue in enumerate(queues):
        for quota in queue.quotas:
            cell = cells[quota.flavor, quota.resource]
            own[q].add(cell)
            own_guarantee = quota.limit if quota.guaranteed is None and parent[q] < 0 else quota.guaranteed
            guaranteed[q][cell] = own_guarantee or 0
            limit[q][cell] = UNLIMITED if quota.limit is None else quota.limit
            lend[q][cell] = UNLIMITED if quota.lend is None else quota.lend
    named = tuple(frozenset(cell for above in path[q] for cell in own[above]) for q in range(len(queues)))
    bottom_up = tuple(sorted(range(len(queues)), key=lambda q: -len(path[q])))
    for q in bottom_up:
        for cell in range(width):
            below = sum(guaranteed[child][cell] for child in children[q])
            own_part = max(0, guaranteed[q][cell] - below)
            guaranteed[q][cell] = min(_MAX_TOTAL, max(guaranteed[q][cell], below))
            total[q][cell] = min(_MAX_TOTAL, own_part + sum(lent[child][cell] for child in children[q]))
            lent[q][cell] = min(lend[q][cell], total[q][cell])
    return QueueTree(
        queues=tuple(queues),
        index=index,
        parent=tuple(parent),
        children=tuple(tuple(c) for c in children),
        path=path,
        inactive_reason=tuple(
            next((inactive_reason[above] for above in path[q] if inactive_reason[above]), "")
            for q in range(len(queues))
        ),
        cell_index=cells,
        cell_names=cell_names,
        guaranteed=tuple(tuple(row) for row in guaranteed),
        limit=tuple(tuple(row) for row in limit),
        subtree_quota=tuple(tuple(row) for row in total),
        local_quota=tuple(tuple(t - k for t, k in zip(total[q], lent[q], strict=True)) for q in range(len(queues))),
        named_cells=named,
        flavors=tuple(tuple(sorted({cell_names[cell][0] for cell in cells})) for cells in named),
        priority_caps=tuple(
            min((cap for q in above if (cap := queues[q].max_priority) is not None), default=None) for above in path
        ),
        reservation_delay_s=tuple(_reservation_delay_s(queues, above) for above in path),
        min_runtime_s=tuple(
            next((at for q in above if (at := queues[q].min_runtime_s) is not None), 0.0) for above in path
        ),
        bottom_up=bottom_up,
        depths=tuple(
            (np.array(level, dtype=np.int64), np.array([parent[q] for q in level], dtype=np.int64))
            for depth in range(max((len(p) for p in path), default=1), 1, -1)
            if (level := sorted((q for q in bottom_up if len(path[q]) == depth), key=lambda q: (parent[q], q)))
        ),
        guaranteed_table=np.array(guaranteed, dtype=np.int64).reshape(len(queues), width),
    )


def _reservation_delay_s(queues: Sequence[QueueInfo], path: Sequence[int]) -> float:
    """That of the queue, or of the nearest queue above that sets it."""
    delays = (queues[q].reservation_delay_s for q in path)
    return next((delay or inf for delay in delays if delay is not None), DEFAULT_RESERVATION_DELAY_S)


def _parents(queues: Sequence[QueueInfo], index: dict[str, int]) -> tuple[list[int], list[str]]:
    """Each queue's parent (-1: none) and why it is inactive. Cycles are cut, and their queues admit nothing."""
    parent = [-1 if queue.parent is None else index.get(queue.parent, -1) for queue in queues]
    inactive_reason = ["" if queue.active else queue.inactive_reason or "it is not active" for queue in queues]
    for q, queue in enumerate(queues):
        if queue.parent is not None and queue.parent not in index:
            inactive_reason[q] = inactive_reason[q] or f"its parent {queue.parent} does not exist"
    for q in range(len(queues)):
        seen, at = {q}, parent[q]
        while at >= 0 and at not in seen:
            seen.add(at)
            at = parent[at]
        if at == q:
            inactive_reason[q] = inactive_reason[q] or "it is in a cycle of parents"
    for q in range(len(queues)):
        seen, at = {q}, q
        while parent[at] >= 0:
            if parent[at] in seen:
                parent[at] = -1
                break
            at = parent[at]
            seen.add(at)
    return parent, inactive_reason


def _path(queue: int, parent: Sequence[int]) -> tuple[int, ...]:
    path = [queue]
    while parent[path[-1]] >= 0:
        path.append(parent[path[-1]])
    return tuple(path)


class QuotaUsage:
    """What is charged to every queue; flat lists, `cell + queue * cell_count`. `subtree_usage` is all usage in and
    below a queue, `usage` is U."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.cell_count = len(tree.cell_index)
        self.subtree_usage = [0] * (self.cell_count * len(tree.queues))
        self.usage = [0] * (self.cell_count * len(tree.queues))
        self._available_cache: dict[tuple[int, int], int] = {}  # by queue and cell; `add` clears it

    def fork(self) -> QuotaUsage:
        """A copy to write on."""
        copy = QuotaUsage.__new__(QuotaUsage)
        copy.tree, copy.cell_count = self.tree, self.cell_count
        copy.subtree_usage, copy.usage, copy._available_cache = self.subtree_usage.copy(), self.usage.copy(), {}
        return copy

    def table(self, *, own_usage: bool = False) -> IntArray:
        """`subtree_usage`, or `usage`, as [queues, cells]."""
        flat = self.usage if own_usage else self.subtree_usage
        try:
            found = np.array(flat, dtype=np.int64)
        except OverflowError:  # what is charged was never within any quota
            found = np.array([max(-MAX_AMOUNT, min(amount, MAX_AMOUNT)) for amount in flat], dtype=np.int64)
        return found.reshape(len(self.tree.queues), self.cell_count)

    def add(self, queue: int, amounts: CellAmounts, sign: int = 1) -> None:
        """Charge amounts to a queue and all queues above it; -1 releases them."""
        local_quota, width = self.tree.local_quota, self.cell_count
        self._available_cache.clear()
        for cell, amount in amounts:
            amount *= sign
            added = amount  # what has to be added to U, at this queue
            for q in self.tree.path[queue]:
                at = q * width + cell
                self.subtree_usage[at] += amount
                if added:
                    before = self.usage[at]
                    after = self.usage[at] = before + added
                    local = local_quota[q][cell]
                    added = (after - local if after > local else 0) - (before - local if before > local else 0)

    def available(self, queue: int, cell: int) -> int:
        """How much more of a cell the queue may use, borrowing included; negative if it is over-admitted."""
        known = self._available_cache.get((queue, cell))
        if known is not None:
            return known
        tree, width, avail, cap = self.tree, self.cell_count, 0, UNLIMITED
        for q in tree.path[queue][::-1]:
            used = self.usage[q * width + cell]
            spare = (tree.subtree_quota if tree.parent[q] < 0 else tree.local_quota)[q][cell] - used
            if spare > 0 or tree.parent[q] < 0:
                avail += spare
            cap = min(cap, tree.limit[q][cell] - self.subtree_usage[q * width + cell])
            avail = min(avail, cap)
        self._available_cache[queue, cell] = avail
        return avail

    def available_table(self) -> IntArray:
        """`available` of every queue and cell at once: [queues, cells]."""
        tree, below, used = self.tree, self.table(), self.table(own_usage=True)
        total, local_quota, limit = (
            np.array(table, dtype=np.int64).reshape(below.shape)
            for table in (tree.subtree_quota, tree.local_quota, tree.limit)
        )
        spare: IntArray = np.maximum(0, local_quota - used)
        cap: IntArray = limit - below
        avail: IntArray = np.minimum(total - used, cap)
        for children, parents in reversed(tree.depths):
            cap[children] = np.minimum(cap[children], cap[parents])
            avail[children] = np.minimum(cap[children], spare[children] + avail[parents])
        return avail

    def fits(self, queue: int, amounts: CellAmounts) -> bool:
        """Whether a request is within the queue's quota."""
        for cell, amount in amounts:  # noqa: SIM110  # called tens of thousands of times a plan: no generator
            if amount > self.available(queue, cell):
                return False
        return True

    def within_guarantee(self, queue: int, amounts: CellAmounts) -> bool:
        """Whether the queue stays within its guarantee with this added."""
        guaranteed, start = self.tree.guaranteed[queue], queue * self.cell_count
        for cell, amount in amounts:  # noqa: SIM110
            if self.subtree_usage[start + cell] + amount > guaranteed[cell]:
                return False
        return True

    def above_guarantee(self, queue: int, cells: Iterable[int]) -> bool:
        """Whether the queue uses more than its guarantee of any of these cells."""
        guaranteed, start = self.tree.guaranteed[queue], queue * self.cell_count
        return any(self.subtree_usage[start + cell] > guaranteed[cell] for cell in cells)
