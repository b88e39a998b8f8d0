"""Counts of pods that fit follow every change of the capacity."""

from __future__ import annotations

import numpy as np
from tests.scheduling.snapshots import H200, gpus, rack

from muster.scheduling.capacity import (
    MAX_PENDING_CHANGES,
    FreeCapacity,
    IntersectionView,
    NodeMasks,
    NodeUsage,
    PodClass,
)
from muster.scheduling.nodes import NodeRule, node_table


def test_a_view_of_several_capacities_is_up_to_date_after_one_dropped_its_list_of_changes() -> None:
    table = node_table(rack("r1", 2), [H200], frozenset())
    pod = PodClass("h200", gpus(8), NodeRule((), (), (), frozenset()))
    usage = NodeUsage(np.array([0]), table.to_row(gpus(8))[None, :])
    capacity = FreeCapacity(NodeMasks(table), table.usable.copy())
    view = IntersectionView([capacity, FreeCapacity(capacity.masks, table.usable.copy())])
    assert view.counts(pod)[-1].tolist() == [1, 1]
    for change in range(MAX_PENDING_CHANGES + 1):
        capacity.add(usage, 1 if change % 2 else -1)
    capacity.carry_over()
    assert view.counts(pod)[-1].tolist() == [0, 1]
