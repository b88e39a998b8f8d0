"""Records which pods of a running gang have completed.

Pods that have ended may be deleted while the others run: a cluster limits how many it keeps. Without a record such a
pod would look lost, and the gang would restart from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.cluster import PodView
from muster.lifecycle.placement import index_range
from muster.spec import FinishedPods, TrainingJobStatus

PodSlotKey = tuple[str, int]
"""Role and index."""


def recorded_finished_pods(status: TrainingJobStatus) -> frozenset[PodSlotKey]:
    """The pods of the present attempt that are recorded to have exited with 0 by themselves."""
    ranges = ((part.role, index_range(run)) for part in status.finished_pods for run in part.indexes.split(","))
    return frozenset((role, index) for role, indexes in ranges for index in indexes)


def newly_finished_pods(status: TrainingJobStatus, pods: Iterable[PodView]) -> list[PodView]:
    """Pods of the present attempt that have done so since."""
    known = recorded_finished_pods(status)
    return [
        pod
        for pod in pods
        if pod.attempt == status.attempt
        and pod.phase == "Succeeded"
        and not pod.deleting  # otherwise it may have been stopped
        and (pod.role, pod.index) not in known
    ]


def to_finished_pods(keys: Iterable[PodSlotKey]) -> list[FinishedPods]:
    """The status form: by role, indexes run-length coded."""
    roles: dict[str, list[int]] = {}
    for role, index in sorted(keys):
        roles.setdefault(role, []).append(index)
    return [FinishedPods(role=role, indexes=",".join(_index_ranges(indexes))) for role, indexes in roles.items()]


def _index_ranges(indexes: list[int]) -> list[str]:
    runs: list[tuple[int, int]] = []
    for index in indexes:
        if runs and runs[-1][1] == index - 1:
            runs[-1] = runs[-1][0], index
        else:
            runs.append((index, index))
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
