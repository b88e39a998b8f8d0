"""What the checks of an attempt read, and what they return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import PodView
from muster.lifecycle.observation import Observation, Timeouts
from muster.lifecycle.placement import PodSlotKey

TransitionEvent: TypeAlias = tuple[Literal["Normal", "Warning"], str, str]


@dataclass(frozen=True, slots=True)
class Transition:
    """The new status, an event, and when to evaluate again if nothing has ended."""

    status: TrainingJobStatus
    event: TransitionEvent | None = None
    wake_times: tuple[float, ...] = ()


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


def is_ready(pod: PodView) -> bool:
    """Whether the pod is ready, or has completed."""
    return pod.phase == "Succeeded" or (pod.phase == "Running" and pod.ready)
