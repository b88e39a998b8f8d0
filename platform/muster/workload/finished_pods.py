"""Records which pods have completed while others of their gang run.

A cluster limits how many ended pods it keeps. Without the record one that it deletes would be taken for a lost one, and
the gang would restart from its last checkpoint.
"""

from __future__ import annotations

from muster.api.spec import QueueingStatus
from muster.workload.conditions import is_admitted, is_evicting, is_finished, with_status_fields
from muster.workload.observation import Observation
from muster.workload.placement import newly_finished_pods, recorded_finished_pods, to_finished_pods
from muster.workload.protocol import Transition
from muster.workload.timeouts import Timeouts


def record_finished_pods(
    observed: QueueingStatus,
    status: QueueingStatus,
    observation: Observation,
    timeouts: Timeouts,
    *,
    done: bool = False,
) -> Transition:
    """The status with these pods: with any other change since the `observed` one, such as an eviction; at once if one
    is gone; and otherwise after a while, since most gangs end all at once and need one write only.

    `done`: the gang has done all its work. Then pods that were stopped have completed too, also those of a gang that
    is being evicted, and are recorded at once.
    """
    if not is_admitted(status) or is_finished(status) or (is_evicting(observed) and not done):
        return Transition(status)
    pods = newly_finished_pods(status, observation.pods, stopped=done)
    if not pods:
        return Transition(status)
    due = min(pod.finished_at or 0.0 for pod in pods) + timeouts.finished_pods_delay_s
    if any(pod.tombstone or pod.deleting for pod in pods):
        due = observation.now
    if status is observed and observation.now < due:
        return Transition(status, wake_times=(due,))
    slots = recorded_finished_pods(status) | {(pod.role, pod.index) for pod in pods}
    return Transition(with_status_fields(status, {"finished_pods": to_finished_pods(slots)}))
