"""What the checks of an attempt read."""

from __future__ import annotations

from dataclasses import dataclass

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import PodView
from muster.workload.observation import Observation
from muster.workload.placement import PodSlotKey
from muster.workload.timeouts import Timeouts


@dataclass(frozen=True, slots=True)
class AttemptContext:
    """The present attempt of an admitted gang."""

    job: TrainingJob
    status: TrainingJobStatus
    observation: Observation
    timeouts: Timeouts
    pods: tuple[PodView, ...]  # of the present attempt and its placement
    old_pods_ended: bool  # no other pod runs
    finished: frozenset[PodSlotKey]  # pods that completed and were deleted
